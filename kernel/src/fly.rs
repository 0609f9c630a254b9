//! FlyMQ frames: splitting PRODUCE frames into groups that become batches, writing their replies, fetches and requests.
//!
//! Everything is done in two passes: the first counts (records of a group, bytes of their keys and values), the second
//! fills memory of exactly that size. Frames that differ only in key and value (and count on their sequence) are found by
//! comparing the bytes around them, so a topic is looked up once per run of such frames, not once per frame. What a frame
//! means for a session is not decided here, and no Python object is touched: that is `fly_py.rs`'s matter.

use crate::batch::{self, Head, KEY_NULLS, KEYS, Layout, Refusal, Sizes};
use crate::blip::{FINDER_SLOTS, be, copy_ahead, topic_slot};
use crate::make;
use std::collections::HashMap;

//   0      1         2    3       4        8
//  |0xAF  |version  |op  |flags  |length  |payload...      big-endian; length counts the payload only
pub const FRAME_BYTES: usize = 8;
pub const MAGIC: u8 = 0xAF;
pub const VERSION: u8 = 1;
pub const MAX_FRAME_CEILING_BYTES: usize = 32 * 1024 * 1024;
// A stored record of the longest frame comes back with a few bytes more around it.
pub const MAX_REPLY_CEILING_BYTES: usize = 64 * 1024 * 1024;
pub const MAX_FETCH_CEILING_BYTES: usize = 1024 * 1024 * 1024;
const MAX_TOPIC_BYTES: usize = 255;
// A longer payload is handed out as it is, without a copy. A fresh copy of 31 MiB takes 24 ms where a page fault takes 3 us,
// so whoever acts on it chooses where the copy is made.
pub const LARGE_PAYLOAD_BYTES: usize = 1024 * 1024;
// A run ends here, so a group's batch stays far below the batch limit of 64 MiB.
const MAX_RUN_BYTES: usize = 16 * 1024 * 1024;
// A group's number must fit the u16 of the run's order.
const MAX_RUN_GROUPS: usize = 65_535;
pub const MICROSECONDS_PER_MILLISECOND: i64 = 1000;

pub const PRODUCE: u8 = 0x01;
pub const FETCH: u8 = 0x07;
pub const FETCH_BINARY: u8 = 0x0B;
pub const PRODUCE_RECORDS: u8 = 0x16;
pub const COMPRESSION_BITS: u8 = 0x0E;
/// RecordMetadata without the name of its topic.
const METADATA_BYTES: usize = 30;
/// "Choose for me": by the key if there is one.
const AUTO: i32 = -1;

const BAD_MAGIC: u8 = 1;
const BAD_VERSION: u8 = 2;
const LONG_LENGTH: u8 = 3;
pub const BAD_REPLY: u8 = 4;

fn u16_be(d: &[u8], at: usize) -> usize {
    u16::from_be_bytes(be(d, at)) as usize
}

fn u32_be(d: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(be(d, at))
}

fn u64_be(d: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(be(d, at))
}

pub enum Next {
    Frame { op: u8, flags: u8, end: usize },
    Wait,
    Fatal(u8),
}

/// The frame at pos. Each field of its head is judged as soon as it is in, the rest when the frame is whole.
#[inline]
pub fn next_frame(d: &[u8], pos: usize, max_frame: usize) -> Next {
    let left = &d[pos..];
    match left {
        [magic, ..] if *magic != MAGIC => return Next::Fatal(BAD_MAGIC),
        [_, version, ..] if *version != VERSION => return Next::Fatal(BAD_VERSION),
        _ if left.len() < FRAME_BYTES => return Next::Wait,
        _ => {}
    }
    let length = u32_be(left, 4) as usize;
    if length > max_frame {
        return Next::Fatal(LONG_LENGTH);
    }
    if left.len() - FRAME_BYTES < length {
        return Next::Wait;
    }
    Next::Frame { op: left[2], flags: left[3], end: pos + FRAME_BYTES + length }
}

/// FNV-1a, 32 bit.
pub fn fnv1a(key: &[u8]) -> u32 {
    key.iter().fold(0x811C_9DC5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

// -- produces ---------------------------------------------------------------------------------------------------------

/// A sound PRODUCE. Positions are from the frame's start; producer_id is 0 without the suffix of idempotent producers.
struct Produce<'a> {
    topic: &'a [u8],
    key: usize,
    key_size: usize,
    value: usize,
    value_size: usize,
    asked: i32,
    producer_id: u64,
    sequence: u32,
}

/// The PRODUCE that is this whole frame, or None if its fields do not add up. `head`: 8, or 0 for a payload alone.
///
///   head        head + 2
///   |topic_len |topic...|key_len u32|key...|value_len u32|value...|partition i32|producer_id u64, sequence u32?|
fn parse_produce(frame: &[u8], head: usize) -> Option<Produce<'_>> {
    let topic = head + 2;
    if frame.len() < topic {
        return None;
    }
    let topic_size = u16_be(frame, head);
    let key = topic + topic_size + 4;
    if topic_size == 0 || topic_size > MAX_TOPIC_BYTES || key > frame.len() {
        return None;
    }
    let key_size = u32_be(frame, key - 4) as usize;
    let value = key + key_size + 4;
    if value > frame.len() {
        return None;
    }
    let value_size = u32_be(frame, value - 4) as usize;
    let tail = value + value_size;
    let (producer_id, sequence) = match frame.len().checked_sub(tail) {
        Some(4) => (0, 0),
        Some(16) => (u64_be(frame, tail + 4), u32_be(frame, tail + 12)),
        _ => return None,
    };
    if producer_id > i64::MAX as u64 || (producer_id == 0 && frame.len() - tail == 16) {
        return None;
    }
    let (topic, asked) = (&frame[topic..topic + topic_size], i32::from_be_bytes(be(frame, tail)));
    Some(Produce { topic, key, key_size, value, value_size, asked, producer_id, sequence })
}

/// A PRODUCE_RECORDS without schema, delay and transaction; producer_id is 0 without an idempotent producer.
pub struct RecordSet<'a> {
    pub topic: &'a [u8],
    pub partition: i32,
    pub set: &'a [u8],
    pub producer_id: u64,
    pub sequence: u32,
}

/// The PRODUCE_RECORDS of this payload, or None: its fields do not add up, or it has more of them.
///
///   0          2
///   |topic_len |topic...|partition i32|set_len u32|set...|producer_id u64, sequence u32?|
pub fn parse_records(payload: &[u8]) -> Option<RecordSet<'_>> {
    let topic_end = 2 + u16::from_be_bytes(*payload.first_chunk()?) as usize;
    let (topic, rest) = (payload.get(2..topic_end)?, &payload[topic_end..]);
    let (partition, rest) = rest.split_first_chunk()?;
    let (size, rest) = rest.split_first_chunk()?;
    let (set, tail) = rest.split_at_checked(u32::from_be_bytes(*size) as usize)?;
    let (producer_id, sequence) = match tail.len() {
        0 => (0, 0),
        12 => (u64_be(tail, 0), u32_be(tail, 8)),
        _ => return None,
    };
    let found = RecordSet { topic, partition: i32::from_be_bytes(*partition), set, producer_id, sequence };
    (producer_id <= i64::MAX as u64).then_some(found)
}

/// Frames of one group that are alike but for the bytes of key and value, one behind the other.
#[derive(Clone, Copy)]
struct Run {
    pos: usize,
    frames: u32,
    stride: u32,
    key: u32,
    key_size: u32,
    value: u32,
    value_size: u32,
    group: u32,
}

/// Records of one topic, partition and producer, which become one batch.
pub struct Group<'a> {
    pub topic: &'a [u8],
    pub partition: i32,
    pub records: usize,
    pub topic_number: u32,
    pub producer_id: u64,
    sequence: u32,
    keyed: usize,
    key_bytes: usize,
    value_bytes: usize,
    first_run: usize,
    end_run: usize,
}

impl Group<'_> {
    /// Whether the next record may come in: the producer's sequence must go on where it stopped.
    fn continues(&self, producer_id: u64, sequence: u32) -> bool {
        producer_id == 0 || u64::from(self.sequence) + self.records as u64 == u64::from(sequence)
    }

    fn is(&self, topic_number: u32, partition: i32, producer_id: u64) -> bool {
        self.topic_number == topic_number && self.partition == partition && self.producer_id == producer_id
    }
}

/// Finds topics and groups by small tables: whoever comes first has the place that its hash says. Whoever finds it taken goes to a
/// map, because hashing against an adversary costs more than the rest of a frame.
struct Finder<'a> {
    topics: Vec<(&'a [u8], u32)>,
    last_topic: usize,
    topic_places: [u32; FINDER_SLOTS],
    other_topics: HashMap<&'a [u8], u32>,
    group_places: [u32; GROUP_SLOTS],
    other_groups: HashMap<(u32, i32, u64), u32>,
}

const GROUP_BITS: u32 = 8;
const GROUP_SLOTS: usize = 1 << GROUP_BITS;
const NOBODY: u32 = u32::MAX;

impl<'a> Finder<'a> {
    fn new() -> Finder<'a> {
        Finder {
            topics: Vec::new(),
            last_topic: usize::MAX,
            topic_places: [NOBODY; FINDER_SLOTS],
            other_topics: HashMap::new(),
            group_places: [NOBODY; GROUP_SLOTS],
            other_groups: HashMap::new(),
        }
    }

    fn is_topic(&self, number: usize, topic: &[u8]) -> bool {
        self.topics.get(number).is_some_and(|known| known.0 == topic)
    }

    /// (number, partitions) of a topic; `ask` tells the partitions of one that is new here, None: nobody knows it.
    fn topic<E>(
        &mut self,
        topic: &'a [u8],
        ask: &mut impl FnMut(&[u8]) -> Result<Option<u32>, E>,
    ) -> Result<Option<(u32, u32)>, E> {
        if !self.is_topic(self.last_topic, topic) {
            let slot = topic_slot(topic);
            let place = self.topic_places[slot];
            let known = match place {
                NOBODY => None,
                _ if self.is_topic(place as usize, topic) => Some(place),
                _ => self.other_topics.get(topic).copied(),
            };
            self.last_topic = match known {
                Some(number) => number as usize,
                None => {
                    let Some(partitions) = ask(topic)? else { return Ok(None) };
                    let number = self.topics.len();
                    self.topics.push((topic, partitions));
                    if place == NOBODY {
                        self.topic_places[slot] = number as u32;
                    } else {
                        self.other_topics.insert(topic, number as u32);
                    }
                    number
                }
            };
        }
        Ok(Some((self.last_topic as u32, self.topics[self.last_topic].1)))
    }

    fn group_slot(topic_number: u32, partition: i32, producer_id: u64) -> usize {
        const MIX: u64 = 0x9E37_79B9_7F4A_7C15;
        let where_to = u64::from(topic_number) << 32 | u64::from(partition as u32);
        ((where_to.wrapping_mul(MIX) ^ producer_id).wrapping_mul(MIX) >> (64 - GROUP_BITS)) as usize
    }

    /// The number of the latest group of these, or one past all groups.
    fn group(&self, groups: &[Group], topic_number: u32, partition: i32, producer_id: u64) -> usize {
        match self.group_places[Self::group_slot(topic_number, partition, producer_id)] {
            NOBODY => usize::MAX,
            place if groups[place as usize].is(topic_number, partition, producer_id) => place as usize,
            _ => self.other_groups.get(&(topic_number, partition, producer_id)).map_or(usize::MAX, |n| *n as usize),
        }
    }

    /// The group that was made last: `groups` ends with it.
    fn set_group(&mut self, groups: &[Group], topic_number: u32, partition: i32, producer_id: u64) {
        let (place, number) =
            (&mut self.group_places[Self::group_slot(topic_number, partition, producer_id)], groups.len() as u32 - 1);
        if *place == NOBODY || groups[*place as usize].is(topic_number, partition, producer_id) {
            *place = number;
        } else {
            self.other_groups.insert((topic_number, partition, producer_id), number);
        }
    }
}

/// Consecutive sound PRODUCE frames.
#[derive(Default)]
pub struct Produces<'a> {
    pub groups: Vec<Group<'a>>,
    pub records: usize,
    runs: Vec<Run>,
    by_group: Vec<Run>,
}

/// Why collecting ended.
pub enum Stop<'a> {
    /// No whole frame, or one that is not a sound PRODUCE.
    Other,
    Unknown(&'a [u8]),
    Full,
}

/// How many frames from `pos` on are like `first`: same length, topic, sizes, partition and producer, and sequences that
/// rise by one; at most `most`.
fn same_frames(d: &[u8], first: &[u8], got: &Produce, pos: usize, most: usize) -> usize {
    let (stride, sizes, tail) = (first.len(), got.value - 4, got.value + got.value_size);
    let want_head = u64_be(first, 0);
    let (want_sizes, want_partition) = (u32_be(first, sizes), u32_be(first, tail));
    let want_topic = &first[FRAME_BYTES..got.key];
    let suffixed = tail + 16 == stride;
    let mut n = 0;
    for frame in d[pos..].chunks_exact(stride).take(most) {
        let same = u64_be(frame, 0) == want_head
            && u32_be(frame, sizes) == want_sizes
            && u32_be(frame, tail) == want_partition
            && same_bytes(&frame[FRAME_BYTES..], want_topic);
        if !same {
            break;
        }
        n += 1;
        if suffixed {
            let next = u64::from(got.sequence) + n as u64;
            if u64_be(frame, tail + 4) != got.producer_id || u64::from(u32_be(frame, tail + 12)) != next {
                return n - 1;
            }
        }
    }
    n
}

/// Whether d starts with `want`. Short ones are compared without a call where d is long enough.
#[inline(always)]
fn same_bytes(d: &[u8], want: &[u8]) -> bool {
    if want.len() <= 16 && d.len() >= 16 {
        let mut wide = [0; 16];
        wide[..want.len()].copy_from_slice(want);
        let mask = if want.len() == 16 { u128::MAX } else { (1u128 << (8 * want.len())) - 1 };
        return u128::from_le_bytes(be(d, 0)) & mask == u128::from_le_bytes(wide);
    }
    d.starts_with(want)
}

/// Collects the PRODUCE frames from start on: (them, where they end, why they end there).
pub fn produces<'a, E>(
    d: &'a [u8],
    start: usize,
    max_frame: usize,
    mut ask: impl FnMut(&[u8]) -> Result<Option<u32>, E>,
) -> Result<(Produces<'a>, usize, Stop<'a>), E> {
    let (mut all, mut finder) = (Produces::default(), Finder::new());
    let (mut pos, mut last, mut stop) = (start, usize::MAX, Stop::Other);
    while let Next::Frame { op: PRODUCE, flags, end } = next_frame(d, pos, max_frame) {
        let frame = &d[pos..end];
        if frame.len() - FRAME_BYTES > LARGE_PAYLOAD_BYTES {
            break;
        }
        let Some(got) = parse_produce(frame, FRAME_BYTES).filter(|_| flags & COMPRESSION_BITS == 0) else { break };
        if pos > start && end - start > MAX_RUN_BYTES {
            stop = Stop::Full;
            break;
        }
        let Some((topic_number, partitions)) = finder.topic(got.topic, &mut ask)? else {
            stop = Stop::Unknown(got.topic);
            break;
        };
        let (partition, producer_id, by_key) = choose(&got, frame, partitions);
        if !all.groups.get(last).is_some_and(|group| group.is(topic_number, partition, producer_id)) {
            last = finder.group(&all.groups, topic_number, partition, producer_id);
        }
        if !all.groups.get(last).is_some_and(|group| group.continues(producer_id, got.sequence)) {
            if all.groups.len() == MAX_RUN_GROUPS {
                stop = Stop::Full;
                break;
            }
            last = all.groups.len();
            all.groups.push(new_group(topic_number, partition, producer_id, &got));
            finder.set_group(&all.groups, topic_number, partition, producer_id);
        }
        let room = MAX_RUN_BYTES.saturating_sub(end - start) / frame.len();
        let frames = 1 + if by_key { 0 } else { same_frames(d, frame, &got, end, room) };
        all.push(&got, last, pos, frames, frame.len());
        pos += frames * frame.len();
    }
    all.sort_runs();
    Ok((all, pos, stop))
}

/// The one record of a PRODUCE payload without its header, in the parts that need its topic and those that do not.
pub struct One<'a> {
    payload: &'a [u8],
    got: Produce<'a>,
}

impl<'a> One<'a> {
    /// None if its fields do not add up.
    pub fn new(payload: &'a [u8]) -> Option<One<'a>> {
        parse_produce(payload, 0).map(|got| One { payload, got })
    }

    pub fn topic(&self) -> &'a [u8] {
        self.got.topic
    }

    /// As `produces` gives it. Hashing a key of 31 MiB takes 40 ms.
    pub fn run(&self, partitions: u32) -> Produces<'a> {
        let (partition, producer_id, _) = choose(&self.got, self.payload, partitions);
        let mut all = Produces::default();
        all.groups.push(new_group(0, partition, producer_id, &self.got));
        all.push(&self.got, 0, 0, 1, self.payload.len());
        all.sort_runs();
        all
    }
}

/// (partition, producer_id, whether the key chose it) that a record is grouped under; 0 partitions: the topic was refused.
fn choose(got: &Produce, frame: &[u8], partitions: u32) -> (i32, u64, bool) {
    match got.asked {
        _ if partitions == 0 => (AUTO, 0, false),
        // One partition keeps the order of a connection, whichever of its records have keys. (An idempotent record without
        // key and partition is refused behind this.)
        AUTO if partitions == 1 && (got.key_size != 0 || got.producer_id == 0) => (0, got.producer_id, false),
        AUTO if got.key_size == 0 => (AUTO, got.producer_id, false),
        AUTO => {
            let hash = fnv1a(&frame[got.key..got.key + got.key_size]);
            ((hash % partitions) as i32, got.producer_id, true)
        }
        asked => (asked, got.producer_id, false),
    }
}

fn new_group<'a>(topic_number: u32, partition: i32, producer_id: u64, got: &Produce<'a>) -> Group<'a> {
    Group {
        topic: got.topic,
        partition,
        records: 0,
        topic_number,
        producer_id,
        sequence: if producer_id == 0 { 0 } else { got.sequence },
        keyed: 0,
        key_bytes: 0,
        value_bytes: 0,
        first_run: 0,
        end_run: 0,
    }
}

impl Produces<'_> {
    fn push(&mut self, got: &Produce, number: usize, pos: usize, frames: usize, stride: usize) {
        let group = &mut self.groups[number];
        group.records += frames;
        group.keyed += if got.key_size == 0 { 0 } else { frames };
        group.key_bytes += frames * got.key_size;
        group.value_bytes += frames * got.value_size;
        self.records += frames;
        // A frame is at most 32 MiB and a run 16 MiB or one payload, so all of these fit 32 bits.
        self.runs.push(Run {
            pos,
            frames: frames as u32,
            stride: stride as u32,
            key: got.key as u32,
            key_size: got.key_size as u32,
            value: got.value as u32,
            value_size: got.value_size as u32,
            group: number as u32,
        });
    }

    /// Brings the runs of each group together, in wire order within the group: a counting sort.
    fn sort_runs(&mut self) {
        for run in &self.runs {
            self.groups[run.group as usize].end_run += 1;
        }
        let mut next = 0;
        for group in &mut self.groups {
            let runs = group.end_run;
            (group.first_run, group.end_run) = (next, next);
            next += runs;
        }
        self.by_group = self.runs.clone();
        for run in &self.runs {
            let group = &mut self.groups[run.group as usize];
            self.by_group[group.end_run] = *run;
            group.end_run += 1;
        }
    }

    /// What the batch of a group will look like.
    pub fn plan(&self, group: &Group, origin: &[u8]) -> Result<(Head, Layout), Refusal> {
        let columns = match group.keyed {
            0 => 0,
            keyed if keyed == group.records => KEYS,
            _ => KEYS | KEY_NULLS,
        };
        let mut head = Head {
            columns,
            count: group.records,
            span: group.records as u32,
            producer_id: group.producer_id,
            sequence: group.sequence,
            origins: 1,
            ..Head::default()
        };
        let sizes = Sizes {
            origins: origin.len() as u64,
            values: group.value_bytes as u64,
            keys: group.key_bytes as u64,
            ..Sizes::default()
        };
        let at = batch::plan(&mut head, &sizes)?;
        Ok((head, at))
    }

    /// Fills the batch: every byte of `out`, which is as long as planned.
    pub fn fill(&self, d: &[u8], group: &Group, plan: &(Head, Layout), origin: &[u8], out: &mut [u8]) {
        let (head, at) = plan;
        let runs = &self.by_group[group.first_run..group.end_run];
        let behind = at.value_data + group.value_bytes;
        out[..at.value_offsets + 4].fill(0);
        make::begin(out, head, at, &[origin]);
        let (front, rest) = out.split_at_mut(at.value_data);
        let (values, rest) = rest.split_at_mut(group.value_bytes);
        let ends = &mut front[at.value_offsets + 4..];
        fill_var(d, ends, values, runs.iter().map(|run| (run, run.value, run.value_size)));
        if group.keyed == 0 {
            rest.fill(0);
            return;
        }
        let (front, rest) = rest.split_at_mut(at.key_data - behind);
        let (keys, rest) = rest.split_at_mut(group.key_bytes);
        let (bits, ends) = front.split_at_mut(at.key_offsets + 4 - behind);
        bits.fill(0);
        rest.fill(0);
        fill_var(d, ends, keys, runs.iter().map(|run| (run, run.key, run.key_size)));
        if at.key_bitmap != 0 {
            let mut row = 0;
            for run in runs {
                let rows = row..row + run.frames as usize;
                row = rows.end;
                if run.key_size != 0 {
                    rows.for_each(|i| make::set_bit(bits, at.key_bitmap - behind, i));
                }
            }
        }
    }

    /// How many bytes the replies to all of it have, if all of it was appended.
    pub fn replies_bytes(&self) -> usize {
        let size = |group: &Group| group.records * (FRAME_BYTES + METADATA_BYTES + group.topic.len());
        self.groups.iter().map(size).sum()
    }

    /// Writes the replies: RecordMetadata of each record, in the order of the frames. `places` has partition, offset and time of each
    /// group, and is used up.
    ///
    ///   0      8           10
    ///   |head |topic_len  |topic...|partition i32|offset u64|timestamp i64|key_size i32|value_size i32|
    pub fn fill_replies(&self, places: &mut [(i32, u64, i64)], flags: u8, out: &mut [u8]) {
        let mut at = 0;
        for run in &self.runs {
            let (topic, place) = (self.groups[run.group as usize].topic, &mut places[run.group as usize]);
            let size = FRAME_BYTES + METADATA_BYTES + topic.len();
            let time = place.2.div_euclid(MICROSECONDS_PER_MILLISECOND);
            let key_size = if run.key_size == 0 { -1 } else { run.key_size as i32 };
            for frame in out[at..].chunks_exact_mut(size).take(run.frames as usize) {
                frame[..4].copy_from_slice(&[MAGIC, VERSION, PRODUCE, flags]);
                batch::put(frame, 4, ((size - FRAME_BYTES) as u32).to_be_bytes());
                batch::put(frame, FRAME_BYTES, (topic.len() as u16).to_be_bytes());
                copy_ahead(frame, FRAME_BYTES + 2, topic, 0, topic.len());
                let rest = &mut frame[FRAME_BYTES + 2 + topic.len()..];
                batch::put(rest, 0, place.0.to_be_bytes());
                batch::put(rest, 4, place.1.to_be_bytes());
                batch::put(rest, 12, time.to_be_bytes());
                batch::put(rest, 20, key_size.to_be_bytes());
                batch::put(rest, 24, (run.value_size as i32).to_be_bytes());
                place.1 += 1;
            }
            at += size * run.frames as usize;
        }
    }

    /// Fills the group number of each record, packed `<H`.
    pub fn fill_order(&self, out: &mut [u8]) {
        let mut places = out.chunks_exact_mut(2);
        for run in &self.runs {
            let number = (run.group as u16).to_le_bytes();
            places.by_ref().take(run.frames as usize).for_each(|place| place.copy_from_slice(&number));
        }
    }
}

/// Writes one column: `ends` gets the end of each entry and then zeros, `data` exactly the entries. Of each run it is
/// said where an entry lies in a frame, and its size.
fn fill_var<'r>(d: &[u8], ends: &mut [u8], data: &mut [u8], runs: impl Iterator<Item = (&'r Run, u32, u32)>) {
    let (mut ends, mut size) = (ends.chunks_exact_mut(4), 0);
    for (run, from, one) in runs {
        let (mut from, one) = (run.pos + from as usize, one as usize);
        for end in ends.by_ref().take(run.frames as usize) {
            copy_ahead(data, size, d, from, one);
            size += one;
            from += run.stride as usize;
            end.copy_from_slice(&(size as u32).to_le_bytes());
        }
    }
    ends.by_ref().for_each(|end| end.fill(0));
    ends.into_remainder().fill(0);
}
