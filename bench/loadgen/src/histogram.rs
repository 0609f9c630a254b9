//! Latencies in a fixed amount of memory: each power of two of nanoseconds is cut into 64 parts (1.6 % wide).

const PART_BITS: u32 = 6;
const PARTS: usize = 1 << PART_BITS;
const BUCKETS: usize = PARTS * (64 - PART_BITS as usize + 1);

pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
}

impl Histogram {
    pub fn new() -> Histogram {
        Histogram { buckets: vec![0; BUCKETS], count: 0 }
    }

    fn bucket(ns: u64) -> usize {
        let shift = (u64::BITS - ns.leading_zeros()).saturating_sub(PART_BITS + 1);
        shift as usize * PARTS + (ns >> shift) as usize
    }

    /// The middle of a bucket, in nanoseconds.
    fn middle(bucket: usize) -> f64 {
        if bucket < 2 * PARTS {
            return bucket as f64;
        }
        let shift = bucket / PARTS - 1;
        ((bucket - shift * PARTS) as f64 + 0.5) * 2f64.powi(shift as i32)
    }

    pub fn add(&mut self, ns: u64) {
        self.buckets[Self::bucket(ns)] += 1;
        self.count += 1;
    }

    /// The latency in microseconds below which this share of the rounds lies; 0 if there were none.
    pub fn at_us(&self, share: f64) -> f64 {
        let rank = ((self.count as f64 * share).ceil() as u64).max(1);
        let mut below = 0;
        for (bucket, rounds) in self.buckets.iter().enumerate() {
            below += rounds;
            if below >= rank {
                return Self::middle(bucket) / 1e3;
            }
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order_and_within_one_part() {
        let mut last = 0;
        for ns in (0..100_000).chain((17..60).map(|bit| (1u64 << bit) + 12_345)) {
            let bucket = Histogram::bucket(ns);
            assert!(bucket >= last && bucket < BUCKETS);
            assert!((Histogram::middle(bucket) - ns as f64).abs() <= ns as f64 / PARTS as f64);
            last = bucket;
        }
        assert!(Histogram::bucket(u64::MAX) < BUCKETS);
    }

    #[test]
    fn shares_are_of_the_rounds_seen() {
        let mut seen = Histogram::new();
        assert_eq!(seen.at_us(0.5), 0.0);
        (1..=100).for_each(|us| seen.add(us * 1000));
        assert!((seen.at_us(0.5) - 50.0).abs() < 1.0);
        assert!((seen.at_us(0.99) - 99.0).abs() < 2.0);
    }
}
