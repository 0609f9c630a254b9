//! BlipMQ frames: splitting what was read into runs that become batches, and writing deliveries and publishes.
//!
//! Everything is done in two passes: the first counts (frames of a topic, bytes of their values), the second fills
//! memory of exactly that size. Runs of frames that differ only in correlation id and value are found by comparing the
//! bytes in front of the value, so a topic is looked at once per run, not once per frame. What a frame means for a
//! session is not decided here, and no Python object is touched.

use crate::batch::{self, AT_MOST_ONCE, Batch, EXPIRY, Head, Layout, Refusal, Sizes};
use crate::make;
use crate::routes::{Route, Routes};
use std::collections::HashMap;

//   0        4      5                13
//  |length  |type  |correlation_id  |payload...      big-endian; length counts everything behind itself
pub const FRAME_BYTES: usize = 13;
const LENGTH_BYTES: usize = 4;
pub const MIN_LENGTH: usize = 9;
pub const MAX_FRAME_CEILING_BYTES: usize = 32 * 1024 * 1024;
const MAX_TOPIC_BYTES: usize = 255;
pub const MAX_U16: usize = 0xFFFF;
// A group's batch must stay under the batch limit of 64 MiB with its offsets and expiries.
pub const MAX_GROUP_BYTES: usize = 32 * 1024 * 1024;
pub const MAX_GROUP_RECORDS: usize = 1024 * 1024;

pub const HELLO: u8 = 1;
pub const AUTH: u8 = 2;
pub const PUBLISH: u8 = 3;
pub const PING: u8 = 7;
pub const PONG: u8 = 8;
pub const ACK: u8 = 5;
pub const POLL: u8 = 9;
pub const DELIVER: u8 = 10;
pub const RECORDS: u8 = 11;
pub const RECORDS_TOPIC_AT: usize = 3; // in its payload
pub const MATCH: u8 = 12;
const TTL_BIT: u8 = 0x80;
const MICROSECONDS_PER_MILLISECOND: i64 = 1000;

const SHORT_LENGTH: u8 = 1;
const LONG_LENGTH: u8 = 2;
const UNKNOWN_TYPE: u8 = 3;
pub const BAD_DELIVERY: u8 = 4;

const BAD_PUBLISH: u8 = 1;
const EMPTY_TOPIC: u8 = 2;
const BAD_QOS: u8 = 3;
const NUL_TOPIC: u8 = 4;
const LONG_TOPIC: u8 = 5;
pub const BAD_ACK: u8 = 6;
pub const BAD_POLL: u8 = 7;
pub const ZERO_SUBSCRIPTION: u8 = 8;

const SPARE: Refusal = "batch columns do not add up: an entry lies outside its column";

pub fn be<const N: usize>(d: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&d[at..at + N]);
    out
}

pub fn u64_be(d: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(be(d, at))
}

fn u16_be(d: &[u8], at: usize) -> usize {
    u16::from_be_bytes(be(d, at)) as usize
}

pub enum Next {
    Frame { kind: u8, end: usize },
    Wait,
    Fatal(u8),
}

/// The frame at pos. Length and type are judged as soon as they are in, the rest when the frame is whole.
#[inline]
pub fn next_frame(d: &[u8], pos: usize, max_frame: usize, last_type: u8) -> Next {
    let left = d.len() - pos;
    if left < LENGTH_BYTES {
        return Next::Wait;
    }
    let length = u32::from_be_bytes(be(d, pos)) as usize;
    if length < MIN_LENGTH {
        return Next::Fatal(SHORT_LENGTH);
    }
    if length > max_frame {
        return Next::Fatal(LONG_LENGTH);
    }
    if left == LENGTH_BYTES {
        return Next::Wait;
    }
    let kind = d[pos + LENGTH_BYTES];
    if kind == 0 || kind > last_type {
        return Next::Fatal(UNKNOWN_TYPE);
    }
    if left < LENGTH_BYTES + length {
        return Next::Wait;
    }
    Next::Frame { kind, end: pos + LENGTH_BYTES + length }
}

/// Copies n bytes. Short ones go as one move of a fixed size when both sides have room: what lands behind them in dst
/// must be written later by the caller, who writes in rising order up to exactly dst.len().
#[inline(always)]
pub fn copy_ahead(dst: &mut [u8], to: usize, src: &[u8], from: usize, n: usize) {
    macro_rules! fixed {
        ($size:literal) => {
            if n <= $size {
                if let (Some(a), Some(b)) = (dst.get_mut(to..to + $size), src.get(from..from + $size)) {
                    a.copy_from_slice(b);
                    return;
                }
            }
        };
    }
    if n <= 128 {
        fixed!(16);
        fixed!(32);
        fixed!(64);
        fixed!(128);
    }
    dst[to..to + n].copy_from_slice(&src[from..from + n]);
}

// -- publishes --------------------------------------------------------------------------------------------------------

/// Where a sound PUBLISH has its parts, as positions in the read. `ttl` is 0 when there is none.
struct Publish {
    qos: u8,
    ttl: usize,
    topic: usize,
    body: usize,
}

/// Where the PUBLISH whose payload is d[at..end] has its parts, or its error number. Its topic is not looked at.
///
///   0      1              1 or 5      3 or 7
///   |qos  |ttl_ms u32?   |topic_len  |topic...|message...        ttl_ms only in version 2 with bit 0x80 of qos
fn parse_publish(d: &[u8], at: usize, end: usize, version: u8) -> Result<Publish, u8> {
    if end - at < 3 {
        return Err(BAD_PUBLISH);
    }
    let (mut qos, mut at, mut ttl) = (d[at], at + 1, 0);
    if version == 2 && qos & TTL_BIT != 0 {
        if end - at < 6 {
            return Err(BAD_PUBLISH);
        }
        qos ^= TTL_BIT;
        ttl = at;
        at += 4;
    }
    let topic = at + 2;
    let body = topic + u16_be(d, at);
    if body > end { Err(BAD_PUBLISH) } else { Ok(Publish { qos, ttl, topic, body }) }
}

/// What is wrong with a topic that is new in this window, or with the QoS of any: 0 is nothing.
fn fault_of(name: &[u8], qos: u8, new: bool) -> u8 {
    if new && std::str::from_utf8(name).is_err() {
        BAD_PUBLISH
    } else if new && name.is_empty() {
        EMPTY_TOPIC
    } else if qos > 1 {
        BAD_QOS
    } else if new && name.contains(&0) {
        NUL_TOPIC
    } else if new && name.len() > MAX_TOPIC_BYTES {
        LONG_TOPIC
    } else {
        0
    }
}

/// Frames of equal length and topic, one behind the other.
#[derive(Clone, Copy)]
struct Run {
    pos: usize,
    frames: usize,
    stride: usize,
    body: usize, // from the frame's start
    ttl: usize,  // from the frame's start; 0: none
    group: usize,
}

/// Publishes to one topic with one QoS, which become one batch.
#[derive(Default)]
pub struct Group<'a, 'r> {
    pub topic: &'a [u8],
    pub route: Option<&'r Route>,
    pub qos: u8,
    pub frames: usize,
    bytes: usize,
    ttl: bool,
    first_run: usize,
    end_run: usize,
}

/// The publishes between two other items.
#[derive(Default)]
pub struct Window<'a, 'r> {
    pub groups: Vec<Group<'a, 'r>>,
    runs: Vec<Run>,
}

/// How many frames from pos on have the same bytes in front of their value as `first` (a frame without TTL), at most
/// `most`.
fn same_frames(d: &[u8], first: usize, pos: usize, stride: usize, body: usize, most: usize) -> usize {
    const HEAD_MASK: u64 = 0x0000_00FF_FFFF_FFFF; // length and type, little-endian
    let tail = body - FRAME_BYTES;
    let low = tail.min(16);
    let mask = if low == 16 { u128::MAX } else { (1u128 << (8 * low)) - 1 };
    let fits = (d.len() - pos) / stride;
    let wide = |at: usize| d.get(at + FRAME_BYTES..at + FRAME_BYTES + 16);
    let Some(want_tail) = wide(first) else { return 0 };
    let want_tail = u128::from_le_bytes(be(want_tail, 0)) & mask;
    let want_head = u64::from_le_bytes(be(d, first)) & HEAD_MASK;
    let rest = &d[first + FRAME_BYTES + low..first + body];
    let (mut at, mut n) = (pos, 0);
    while n < fits.min(most) {
        let Some(tail) = wide(at) else { break };
        let head = u64::from_le_bytes(be(d, at)) & HEAD_MASK;
        if head != want_head || u128::from_le_bytes(be(tail, 0)) & mask != want_tail {
            break;
        }
        if !rest.is_empty() && &d[at + FRAME_BYTES + low..at + body] != rest {
            break;
        }
        at += stride;
        n += 1;
    }
    n
}

/// Finds the groups of topics that nothing else knows: a small table of guesses in front of the map, because hashing against an
/// adversary costs more than the rest of a frame. A wrong guess only costs the look into the map.
struct Finder<'a> {
    guesses: [u32; FINDER_SLOTS],
    by_topic: HashMap<&'a [u8], u32>,
}

pub const FINDER_SLOTS: usize = 1 << FINDER_BITS;
const FINDER_BITS: u32 = 9; // 2 KiB of guesses: a few hundred topics that take turns are found without the map

/// Where a table of FINDER_SLOTS guesses has its guess for a topic.
#[inline]
pub fn topic_slot(topic: &[u8]) -> usize {
    const MIX: u64 = 0x9E37_79B9_7F4A_7C15;
    let size = topic.len();
    let mut mixed = size as u64;
    let mut add = |word: u64| mixed = (mixed.rotate_left(5) ^ word).wrapping_mul(MIX);
    for at in (0..size / 8 * 8).step_by(8) {
        add(u64::from_le_bytes(be(topic, at)));
    }
    if size >= 8 {
        add(u64::from_le_bytes(be(topic, size - 8))); // the rest, and some of what was before it
    } else {
        add(topic.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)));
    }
    (mixed >> (64 - FINDER_BITS)) as usize
}

impl<'a> Finder<'a> {
    fn new() -> Finder<'a> {
        Finder { guesses: [u32::MAX; FINDER_SLOTS], by_topic: HashMap::new() }
    }

    /// The number of the topic's group, if it has one.
    fn find(&mut self, groups: &[Group<'a, '_>], topic: &'a [u8]) -> Option<usize> {
        let guess = &mut self.guesses[topic_slot(topic)];
        if groups.get(*guess as usize).is_none_or(|group| group.topic != topic) {
            *guess = self.by_topic.get(topic).copied().unwrap_or(u32::MAX);
        }
        (*guess != u32::MAX).then_some(*guess as usize)
    }

    fn set(&mut self, topic: &'a [u8], number: usize) {
        self.guesses[topic_slot(topic)] = number as u32;
        self.by_topic.insert(topic, number as u32);
    }
}

const AHEAD: usize = 16; // frames between the first look at a topic and its use: by then memory has answered
const AHEAD_ROUTE: usize = 8; // and between the second one and its use

/// Looks at the topics of the frames that follow, so that their routes are in the processor's cache when they are used.
struct Ahead<'a, 'r> {
    d: &'a [u8],
    routes: &'r Routes,
    version: u8,
    max_frame: usize,
    window: u64,
    seen: [(usize, u64); AHEAD], // a ring: where a frame begins, and the hash of its topic
    first: usize,                // of them that was not asked for yet, and
    next: usize,                 // the one that follows, both counted from the first frame on
    pos: usize,                  // where that one begins
}

impl<'a, 'r> Ahead<'a, 'r> {
    fn new(d: &'a [u8], pos: usize, version: u8, max_frame: usize, routes: &'r Routes) -> Ahead<'a, 'r> {
        let seen = [(0, 0); AHEAD];
        Ahead { d, routes, version, max_frame, window: routes.window(), seen, first: 0, next: 0, pos }
    }

    /// The route of the topic of a sound frame. Frames are asked for in rising order, those within a run are not.
    fn route(&mut self, pos: usize, topic: &[u8]) -> Option<&'r Route> {
        if self.routes.are_few() {
            return self.routes.find(topic);
        }
        while self.first < self.next && self.seen[self.first % AHEAD].0 < pos {
            self.first += 1;
        }
        self.pos = self.pos.max(pos);
        while self.next < self.first + AHEAD && self.look() {}
        let (at, hash) = self.seen[self.first % AHEAD];
        self.routes.find_hashed(topic, if at == pos { hash } else { self.routes.hash(topic) })
    }

    /// Look at one frame more. What is not sound is judged when its turn comes.
    fn look(&mut self) -> bool {
        let Next::Frame { kind: PUBLISH, end } = next_frame(self.d, self.pos, self.max_frame, DELIVER) else {
            return false;
        };
        let Ok(got) = parse_publish(self.d, self.pos + FRAME_BYTES, end, self.version) else { return false };
        self.seen[self.next % AHEAD] = (self.pos, self.routes.announce(&self.d[got.topic..got.body]));
        if self.next >= self.first + AHEAD_ROUTE {
            self.routes.fetch(self.seen[(self.next - AHEAD_ROUTE) % AHEAD].1);
        }
        self.next += 1;
        self.pos = end;
        true
    }
}

/// Collects the publishes from pos on: (window, where it ends, the error of the frame there if it is a bad PUBLISH). Groups of topics
/// that `routes` know have their route.
pub fn publishes<'a, 'r>(
    d: &'a [u8],
    mut pos: usize,
    version: u8,
    max_frame: usize,
    routes: Option<&'r Routes>,
) -> (Window<'a, 'r>, usize, u8) {
    let mut window = Window::default();
    let mut finder: Option<Box<Finder>> = None; // most windows need none
    let mut ahead = routes.map(|routes| Ahead::new(d, pos, version, max_frame, routes));
    let (mut last, mut fault) = (usize::MAX, 0);
    while let Next::Frame { kind: PUBLISH, end } = next_frame(d, pos, max_frame, DELIVER) {
        let got = match parse_publish(d, pos + FRAME_BYTES, end, version) {
            Ok(got) => got,
            Err(error) => {
                fault = error;
                break;
            }
        };
        let (topic, size, stride) = (&d[got.topic..got.body], end - got.body, end - pos);
        let is_last = window.groups.get(last).filter(|group| group.topic == topic);
        let route = match is_last {
            Some(group) => group.route,
            None => ahead.as_mut().and_then(|ahead| ahead.route(pos, topic)),
        };
        let found = match (is_last, route, &ahead) {
            (Some(_), ..) => Some(last),
            (_, Some(route), Some(ahead)) => route.group(ahead.window),
            _ => finder.as_mut().and_then(|finder| finder.find(&window.groups, topic)),
        };
        fault = fault_of(topic, got.qos, found.is_none() && route.is_none());
        if fault != 0 {
            break;
        }
        let fits = |number: &usize| {
            let group = &window.groups[*number];
            group.qos == got.qos && group.bytes + size <= MAX_GROUP_BYTES && group.frames < MAX_GROUP_RECORDS
        };
        let number = found.filter(fits).unwrap_or_else(|| {
            let number = window.groups.len();
            match (route, &ahead) {
                (Some(route), Some(ahead)) => route.set_group(ahead.window, number),
                _ => finder.get_or_insert_with(|| Box::new(Finder::new())).set(topic, number),
            }
            window.groups.push(Group { topic, route, qos: got.qos, ..Group::default() });
            number
        });
        let group = &mut window.groups[number];
        let mut frames = 1;
        if got.ttl == 0 {
            let by_bytes = (MAX_GROUP_BYTES - group.bytes).checked_div(size).unwrap_or(usize::MAX);
            let most = by_bytes.min(MAX_GROUP_RECORDS - group.frames) - 1;
            frames += same_frames(d, pos, end, stride, got.body - pos, most);
        }
        group.frames += frames;
        group.bytes += frames * size;
        group.ttl |= got.ttl != 0;
        let ttl = if got.ttl == 0 { 0 } else { got.ttl - pos };
        window.runs.push(Run { pos, frames, stride, body: got.body - pos, ttl, group: number });
        last = number;
        pos += frames * stride;
    }
    window.sort_runs();
    (window, pos, fault)
}

impl Window<'_, '_> {
    /// Brings the runs of each group together, in wire order within the group: a counting sort.
    fn sort_runs(&mut self) {
        for run in &self.runs {
            self.groups[run.group].end_run += 1;
        }
        let mut next = 0;
        for group in &mut self.groups {
            let runs = group.end_run;
            (group.first_run, group.end_run) = (next, next);
            next += runs;
        }
        let mut sorted = self.runs.clone();
        for run in &self.runs {
            let group = &mut self.groups[run.group];
            sorted[group.end_run] = *run;
            group.end_run += 1;
        }
        self.runs = sorted;
    }

    /// What the batch of a group will look like.
    pub fn plan(&self, group: &Group, origin: &[u8]) -> Result<(Head, Layout), Refusal> {
        let mut head = Head {
            flags: if group.qos == 0 { AT_MOST_ONCE } else { 0 },
            columns: if group.ttl { EXPIRY } else { 0 },
            count: group.frames,
            span: group.frames as u32,
            origins: 1,
            ..Head::default()
        };
        let sizes = Sizes { origins: origin.len() as u64, values: group.bytes as u64, ..Sizes::default() };
        let at = batch::plan(&mut head, &sizes)?;
        Ok((head, at))
    }

    /// Fills the batch: every byte of `out`, which is as long as planned.
    pub fn fill(&self, d: &[u8], group: &Group, plan: &(Head, Layout), origin: &[u8], now: i64, out: &mut [u8]) {
        let (head, at) = plan;
        out[at.value_data + group.bytes..].fill(0);
        make::begin_unzeroed(out, head, at, origin);
        let (front, rest) = out.split_at_mut(at.value_data);
        let mut offsets = front[at.value_offsets + 4..at.value_offsets + 4 * (group.frames + 1)].chunks_exact_mut(4);
        let (values, behind) = rest.split_at_mut(group.bytes);
        let expiries = at.expiries.wrapping_sub(at.value_data + group.bytes);
        let (mut size, mut row) = (0, 0);
        for run in &self.runs[group.first_run..group.end_run] {
            let one = run.stride - run.body;
            let mut from = run.pos + run.body;
            for offset in offsets.by_ref().take(run.frames) {
                copy_ahead(values, size, d, from, one);
                size += one;
                from += run.stride;
                offset.copy_from_slice(&(size as u32).to_le_bytes());
            }
            if run.ttl != 0 {
                let ttl_ms = i64::from(u32::from_be_bytes(be(d, run.pos + run.ttl)));
                let expiry = now + ttl_ms * MICROSECONDS_PER_MILLISECOND;
                make::put_i64(behind, expiries, row, expiry);
            }
            row += run.frames;
        }
    }

    /// Fills the correlation ids of a group, packed `<Q`.
    pub fn fill_ids(&self, d: &[u8], group: &Group, out: &mut [u8]) {
        let mut ids = out.chunks_exact_mut(8);
        for run in &self.runs[group.first_run..group.end_run] {
            let mut at = run.pos + 5;
            for id in ids.by_ref().take(run.frames) {
                id.copy_from_slice(&u64_be(d, at).to_le_bytes());
                at += run.stride;
            }
        }
    }
}

// -- deliveries -------------------------------------------------------------------------------------------------------

/// Delivery frames that can be written: all entries are checked and the size is known.
pub struct Delivery<'a> {
    batch: Batch<'a>,
    first: usize,
    last: usize,
    template: Vec<u8>,
    version: u8,
    qos: u8,
    first_tag: u64,
    ids: &'a [u8],
    now: i64,
    pub bytes: usize,
    pub frames: usize,
}

pub struct DeliveryWish<'a> {
    pub version: u8,
    pub topic: &'a [u8],
    pub qos: u8,
    pub data: &'a [u8],
    pub first: i64,
    pub last: i64,
    pub first_tag: u64,
    pub ids: &'a [u8],
    pub now: i64,
}

/// (records, bytes of their values) of those of first..last that have not expired, all entries of the range checked.
pub fn measure(batch: &Batch, first: i64, last: i64, now: i64) -> Result<(usize, usize), Refusal> {
    if first < 0 || first > last || last > batch.head.count as i64 {
        return Err("first and last must lie in the batch, in this order");
    }
    let (first, last) = (first as usize, last as usize);
    let limit = batch.value_size() as i32;
    let offsets = &batch.d[batch.at.value_offsets + 4 * first..batch.at.value_offsets + 4 * (last + 1)];
    let pairs = offsets.chunks_exact(4).zip(offsets[4..].chunks_exact(4));
    let inside = |a: i32, b: i32| (a >= 0) & (a <= b) & (b <= limit);
    if batch.at.expiries == 0 {
        if !pairs.fold(true, |ok, (a, b)| ok & inside(batch::i32_at(a, 0), batch::i32_at(b, 0))) {
            return Err(SPARE);
        }
        let bytes = batch::i32_at(offsets, 4 * (last - first)) - batch::i32_at(offsets, 0);
        return Ok((last - first, bytes as usize));
    }
    let (mut records, mut bytes) = (0, 0);
    for (i, (a, b)) in pairs.enumerate() {
        let (a, b) = (batch::i32_at(a, 0), batch::i32_at(b, 0));
        if !inside(a, b) {
            return Err(SPARE);
        }
        let expiry = batch.expiry(first + i);
        if expiry == 0 || expiry > now {
            records += 1;
            bytes += (b - a) as usize;
        }
    }
    Ok((records, bytes))
}

impl<'a> Delivery<'a> {
    pub fn new(wish: DeliveryWish<'a>) -> Result<Delivery<'a>, Refusal> {
        let DeliveryWish { version, topic, qos, data, first, last, first_tag, ids, now } = wish;
        let batch = Batch::open(data, 0)?;
        let (frames, value_bytes) = measure(&batch, first, last, now)?;
        let (first, last) = (first as usize, last as usize);
        let template = delivery_template(version, qos, topic);
        if version == 1 && qos == 0 && ids.len() / 8 < frames {
            return Err("fewer correlation ids than frames; give one id for each record");
        }
        let bytes = value_bytes + frames * template.len();
        let delivery = Delivery { batch, first, last, template, version, qos, first_tag, ids, now, bytes, frames };
        if qos == 1 {
            delivery.check_tags()?
        }
        Ok(delivery)
    }

    /// No tag of a frame that will be sent may leave the unsigned 64-bit range.
    fn check_tags(&self) -> Result<(), Refusal> {
        let sound = |i: usize| {
            let tag =
                i128::from(self.first_tag) + i128::from(self.batch.delta(i)) - i128::from(self.batch.delta(self.first));
            u64::try_from(tag).is_ok()
        };
        let all = if self.batch.at.deltas == 0 && self.batch.at.expiries == 0 {
            self.first == self.last || sound(self.last - 1)
        } else {
            (self.first..self.last).all(|i| self.expired(i) || sound(i))
        };
        if all { Ok(()) } else { Err("delivery tag leaves the unsigned 64-bit range") }
    }

    fn expired(&self, i: usize) -> bool {
        let expiry = self.batch.expiry(i);
        expiry != 0 && expiry <= self.now
    }

    /// Fills exactly `bytes` bytes.
    pub fn fill(&self, out: &mut [u8]) {
        let (template, batch) = (&self.template[..], &self.batch);
        let (d, data) = (batch.d, batch.at.value_data);
        // Room behind the template lets its copy have a fixed size.
        let mut wide = template.to_vec();
        wide.resize(template.len() + 128, 0);
        let base = if self.first < self.last { batch.delta(self.first) } else { 0 };
        let mut ids = self.ids.chunks_exact(8);
        let offsets = &d[batch.at.value_offsets + 4 * self.first..batch.at.value_offsets + 4 * (self.last + 1)];
        let pairs = offsets.chunks_exact(4).zip(offsets[4..].chunks_exact(4));
        let (by_ids, pushed) = (self.version == 1 && self.qos == 0, self.version == 2);
        let mut at = 0;
        for (i, (a, b)) in pairs.enumerate() {
            let i = self.first + i;
            if batch.at.expiries != 0 && self.expired(i) {
                continue;
            }
            let (a, b) = (batch::i32_at(a, 0) as usize, batch::i32_at(b, 0) as usize);
            let tag = if by_ids {
                ids.next().map_or(0, |id| u64::from_le_bytes(be(id, 0)))
            } else if self.qos == 1 {
                self.first_tag.wrapping_add(batch.delta(i)).wrapping_sub(base)
            } else {
                0
            };
            copy_ahead(out, at, &wide, 0, template.len());
            let length = (template.len() - LENGTH_BYTES + b - a) as u32;
            let head = &mut out[at..at + template.len()];
            head[..4].copy_from_slice(&length.to_be_bytes());
            head[5..13].copy_from_slice(&tag.to_be_bytes());
            if pushed {
                head[14..22].copy_from_slice(&tag.to_be_bytes());
            }
            copy_ahead(out, at + template.len(), d, data + a, b - a);
            at += template.len() + b - a;
        }
    }
}

//  version 1:  |length|3 |tag|qos|topic_len|topic|message      version 2:  |length|10|tag|qos|tag|topic_len|topic|message
fn delivery_template(version: u8, qos: u8, topic: &[u8]) -> Vec<u8> {
    let mut out = vec![0; FRAME_BYTES];
    out[LENGTH_BYTES] = if version == 2 { DELIVER } else { PUBLISH };
    out.push(qos);
    if version == 2 {
        out.extend([0; 8]);
    }
    out.extend((topic.len() as u16).to_be_bytes());
    out.extend(topic);
    out
}

/// What stands in front of the value of a client's PUBLISH; length and correlation id are still zero.
pub fn publish_template(topic: &[u8], qos: u8, ttl_ms: u32) -> Vec<u8> {
    let mut out = vec![0; FRAME_BYTES];
    out[LENGTH_BYTES] = PUBLISH;
    if ttl_ms == 0 {
        out.push(qos);
    } else {
        out.push(qos | TTL_BIT);
        out.extend(ttl_ms.to_be_bytes());
    }
    out.extend((topic.len() as u16).to_be_bytes());
    out.extend(topic);
    out
}

/// Writes one client PUBLISH at `at`; returns where it ends. out must have room for it.
pub fn put_publish(out: &mut [u8], at: usize, template: &[u8], id: u64, value: &[u8]) -> usize {
    let end = at + template.len() + value.len();
    let frame = &mut out[at..end];
    let (head, body) = frame.split_at_mut(template.len());
    head.copy_from_slice(template);
    head[..4].copy_from_slice(&((end - at - LENGTH_BYTES) as u32).to_be_bytes());
    head[5..13].copy_from_slice(&id.to_be_bytes());
    body.copy_from_slice(value);
    end
}

/// (topic, qos, where the message starts) of a PUBLISH or DELIVER payload d[at..end] sent by a server.
pub fn parse_delivery<'a>(d: &'a [u8], at: usize, end: usize, kind: u8, known: &[u8]) -> Option<(&'a [u8], u8, usize)> {
    let lead = if kind == DELIVER { 9 } else { 1 };
    if end - at < lead + 2 || d[at] > 1 {
        return None;
    }
    let topic = at + lead + 2;
    let body = topic + u16_be(d, at + lead);
    if body > end {
        return None;
    }
    let name = &d[topic..body];
    if name != known && std::str::from_utf8(name).is_err() {
        return None;
    }
    Some((name, d[at], body))
}

/// The answer to a PING.
pub fn put_pong(out: &mut Vec<u8>, cid: u64) {
    out.extend((MIN_LENGTH as u32).to_be_bytes());
    out.push(PONG);
    out.extend(cid.to_be_bytes());
}

/// The front of a RECORDS payload, [u8 qos][u16 n][topic], behind which its set begins. None: it is not all there.
pub fn records_head(payload: &[u8]) -> Option<&[u8]> {
    let size = payload.get(1..3).map(|n| u16::from_be_bytes(be(n, 0)) as usize)?;
    payload.get(..RECORDS_TOPIC_AT + size)
}
