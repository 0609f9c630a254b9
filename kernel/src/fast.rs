//! Fast TCP packets: splitting what was read into runs that become batches, and writing messages and publishes.
//!
//! Everything is done in two passes: the first counts (packets of a topic, bytes of their values), the second fills memory
//! of exactly that size. A packet carries its token, so runs of packets with the same bytes in front of the payload are
//! found by comparing these, and a token is asked for once per group, not once per packet. What a packet means for a
//! session is not decided here, and no Python object is touched.

use crate::batch::{self, Batch, EXPIRY, Head, Layout, Refusal, Sizes};
use crate::blip::{self, FINDER_SLOTS, MAX_GROUP_BYTES, MAX_GROUP_RECORDS, be, copy_ahead, topic_slot};
use crate::make;
use std::collections::HashMap;

//  requests:  0      1     2       2+N         6+N          10+N
//  CREATE     |1    |N    |token  |T u8 |name T bytes |flags u8
//  SUBSCRIBE  |2    |N    |token  |topic u32                             UNSUBSCRIBE |5 is the same
//  PUBLISH    |3    |N    |token  |topic u32  |length u32  |payload
//  ROTATE     |7    |N    |token  |topic u32  |M u8 |new key M bytes
//  RECORDS    |0x71 |N    |token  |topic u32  |length u32  |record set       only where EXTEND came before
//  EXTEND     |0x70 |version                                             big-endian; there is no outer length
//  A token of no bytes may stand for the last one that was accepted: see `meant`.
pub const CREATE: u8 = 1;
pub const SUBSCRIBE: u8 = 2;
pub const PUBLISH: u8 = 3;
pub const UNSUBSCRIBE: u8 = 5;
pub const ROTATE: u8 = 7;
pub const EXTEND: u8 = 0x70;
pub const RECORDS: u8 = 0x71;

//  replies:   0             1           5           9
//  MESSAGE    |4           |topic u32  |length u32 |payload
//  MESSAGES   |0x72        |topic u32  |length u32 |record set
//  KEY_UPDATE |6           |topic u32  |M u8 |new key M bytes
//             0             1           2          6         8     9
//  OK, ERROR  |0x7E, 0x7F  |request u8 |topic u32 |code u16 |L u8 |message L bytes
pub const MESSAGE: u8 = 4;
pub const MESSAGES: u8 = 0x72;
pub const KEY_UPDATE: u8 = 6;
pub const OK: u8 = 0x7E;
pub const ERROR: u8 = 0x7F;
pub const MESSAGE_HEAD_BYTES: usize = 9;
pub const RESULT_HEAD_BYTES: usize = 9;

pub const MAX_TOKEN_BYTES: usize = 255;
pub const MAX_PAYLOAD_CEILING_BYTES: usize = 32 * 1024 * 1024;

const BAD_TYPE: u8 = 1;
const LONG_PAYLOAD: u8 = 2;
const BAD_OK: u8 = 3;

pub fn u32_be(d: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(be(d, at))
}

/// A whole packet at the place it was looked for. `body` is where a request's token ends.
pub enum Next {
    Packet { kind: u8, body: usize, end: usize },
    Wait,
    Fatal(u8),
}

/// The whole packet of `size` bytes at pos, if its size is known and it is there.
#[inline]
fn whole(d: &[u8], pos: usize, kind: u8, body: usize, size: Option<usize>) -> Next {
    match size {
        Some(size) if size <= d.len() - pos => Next::Packet { kind, body: pos + body, end: pos + size },
        _ => Next::Wait,
    }
}

/// The request at pos. Type and payload length are judged as soon as they are in, the rest when the packet is whole.
#[inline]
pub fn next_request(d: &[u8], pos: usize, payload_max: usize, extended: bool) -> Next {
    let left = &d[pos..];
    let Some(&kind) = left.first() else { return Next::Wait };
    if !matches!(kind, CREATE | SUBSCRIBE | PUBLISH | UNSUBSCRIBE | ROTATE | EXTEND) && !(kind == RECORDS && extended) {
        return Next::Fatal(BAD_TYPE);
    }
    let Some(&token) = left.get(1) else { return Next::Wait };
    let body = 2 + token as usize;
    let size = match kind {
        EXTEND => Some(2),
        CREATE => left.get(body).map(|name| body + 1 + *name as usize + 1),
        ROTATE => left.get(body + 4).map(|key| body + 5 + *key as usize),
        PUBLISH | RECORDS if left.len() >= body + 8 => {
            let length = u32_be(left, body + 4) as usize;
            if length > payload_max {
                return Next::Fatal(LONG_PAYLOAD);
            }
            Some(body + 8 + length)
        }
        PUBLISH | RECORDS => None,
        _ => Some(body + 4),
    };
    whole(d, pos, kind, body, size)
}

/// The reply at pos, judged as next_request does.
pub fn next_reply(d: &[u8], pos: usize, payload_max: usize) -> Next {
    let left = &d[pos..];
    let Some(&kind) = left.first() else { return Next::Wait };
    let size = match kind {
        MESSAGE | MESSAGES if left.len() >= MESSAGE_HEAD_BYTES => {
            let length = u32_be(left, 5) as usize;
            if length > payload_max {
                return Next::Fatal(LONG_PAYLOAD);
            }
            Some(MESSAGE_HEAD_BYTES + length)
        }
        MESSAGE | MESSAGES => None,
        KEY_UPDATE => left.get(5).map(|key| 6 + *key as usize),
        OK if left.len() >= RESULT_HEAD_BYTES && left[6..RESULT_HEAD_BYTES] != [0; 3] => {
            return Next::Fatal(BAD_OK);
        }
        OK | ERROR => left.get(8).map(|message| RESULT_HEAD_BYTES + *message as usize),
        _ => return Next::Fatal(BAD_TYPE),
    };
    whole(d, pos, kind, 0, size)
}

// -- publishes --------------------------------------------------------------------------------------------------------

/// Packets with the same bytes in front of the payload, one behind the other. `next` is the group's next run.
struct Run {
    payload: usize,
    size: usize,
    packets: usize,
    stride: usize,
    next: usize,
}

/// What the asker says of a token: its number, and whether it is accepted.
#[derive(Clone, Copy)]
pub struct Known {
    pub number: usize,
    pub accepted: bool,
}

/// What an empty token stands for, nothing yet if it is empty itself; None where an empty token is just that.
pub type Same<'a> = Option<&'a [u8]>;

/// The token that is meant by the one in a packet.
pub fn meant<'a>(shown: &'a [u8], same: Same<'a>) -> &'a [u8] {
    if shown.is_empty() { same.unwrap_or(shown) } else { shown }
}

/// An accepted token is what empty ones behind it stand for; a refused one changes nothing.
pub fn follow<'a>(same: &mut Same<'a>, jwt: &'a [u8], known: Known) {
    if known.accepted && same.is_some() {
        *same = Some(jwt);
    }
}

/// Publishes with one token to one topic, which become one batch.
pub struct Group<'a> {
    jwt: &'a [u8],
    pub token: Known,
    pub topic: u32,
    pub packets: usize,
    bytes: usize,
    first_run: usize,
    last_run: usize,
}

/// The publishes between two other items.
#[derive(Default)]
pub struct Window<'a> {
    pub groups: Vec<Group<'a>>,
    runs: Vec<Run>,
}

/// How many packets from pos on begin with `head`, at most `most`.
fn same_packets(d: &[u8], head: &[u8], mut pos: usize, stride: usize, most: usize) -> usize {
    let most = most.min((d.len() - pos) / stride);
    let mut n = 0;
    while n < most && &d[pos..pos + head.len()] == head {
        pos += stride;
        n += 1;
    }
    n
}

/// Finds the latest group of a topic: guesses in front of a map that withstands an adversary, as for BlipMQ.
struct Finder {
    guesses: [usize; FINDER_SLOTS],
    by_topic: HashMap<u32, usize>,
}

impl Finder {
    /// The number of the topic's group, or one past all groups.
    fn find(&mut self, groups: &[Group], topic: u32) -> usize {
        let guess = &mut self.guesses[topic_slot(&topic.to_le_bytes())];
        if groups.get(*guess).is_none_or(|group| group.topic != topic) {
            *guess = self.by_topic.get(&topic).copied().unwrap_or(usize::MAX);
        }
        *guess
    }

    fn set(&mut self, topic: u32, number: usize) {
        self.guesses[topic_slot(&topic.to_le_bytes())] = number;
        self.by_topic.insert(topic, number);
    }
}

/// Where collecting ended, and the token of the packet there if the asker does not know it.
pub type Stop<'a> = (usize, Option<&'a [u8]>);

/// Collects the publishes from pos on. `ask` says what is known of a token, or None. `same` follows the tokens.
pub fn publishes<'a, E>(
    d: &'a [u8],
    mut pos: usize,
    payload_max: usize,
    same: &mut Same<'a>,
    mut ask: impl FnMut(&'a [u8]) -> Result<Option<Known>, E>,
) -> Result<(Window<'a>, Stop<'a>), E> {
    let mut window = Window::default();
    let mut finder = Finder { guesses: [usize::MAX; FINDER_SLOTS], by_topic: HashMap::new() };
    let mut last = usize::MAX;
    while let Next::Packet { kind: PUBLISH, body, end } = next_request(d, pos, payload_max, same.is_some()) {
        let (jwt, topic, payload) = (meant(&d[pos + 2..body], *same), u32_be(d, body), body + 8);
        let (size, stride) = (end - payload, end - pos);
        let mut number = finder.find(&window.groups, topic);
        // A topic keeps its order, so one that another token published to since goes on in a new group.
        let fits = window.groups.get(number).is_some_and(|group| {
            group.jwt == jwt && group.bytes + size <= MAX_GROUP_BYTES && group.packets < MAX_GROUP_RECORDS
        });
        if !fits {
            let token = match window.groups.get(last) {
                Some(group) if group.jwt == jwt => group.token,
                _ => match ask(jwt)? {
                    Some(token) => token,
                    None => return Ok((window, (pos, Some(jwt)))),
                },
            };
            number = window.groups.len();
            finder.set(topic, number);
            let (first_run, last_run) = (window.runs.len(), window.runs.len());
            window.groups.push(Group { jwt, token, topic, packets: 0, bytes: 0, first_run, last_run });
        }
        let group = &mut window.groups[number];
        follow(same, jwt, group.token);
        let by_bytes = (MAX_GROUP_BYTES - group.bytes).checked_div(size).unwrap_or(usize::MAX);
        let most = by_bytes.min(MAX_GROUP_RECORDS - group.packets) - 1;
        let packets = 1 + same_packets(d, &d[pos..payload], end, stride, most);
        group.packets += packets;
        group.bytes += packets * size;
        let run = window.runs.len();
        if run != group.first_run {
            window.runs[group.last_run].next = run;
        }
        group.last_run = run;
        window.runs.push(Run { payload, size, packets, stride, next: usize::MAX });
        last = number;
        pos += packets * stride;
    }
    Ok((window, (pos, None)))
}

impl Window<'_> {
    /// What the batch of a group will look like; without an expiry, 0, it has no column for it.
    pub fn plan(&self, group: &Group, origin: &[u8], flags: u16, expiry: i64) -> Result<(Head, Layout), Refusal> {
        let mut head = Head {
            flags,
            columns: if expiry != 0 { EXPIRY } else { 0 },
            count: group.packets,
            span: group.packets as u32,
            origins: 1,
            ..Head::default()
        };
        let sizes = Sizes { origins: origin.len() as u64, values: group.bytes as u64, ..Sizes::default() };
        let at = batch::plan(&mut head, &sizes)?;
        Ok((head, at))
    }

    /// Fills the batch: every byte of `out`, which is as long as planned.
    pub fn fill(&self, d: &[u8], group: &Group, plan: &(Head, Layout), origin: &[u8], expiry: i64, out: &mut [u8]) {
        let (head, at) = plan;
        out[..at.value_offsets + 4].fill(0);
        out[at.value_offsets + 4 * (group.packets + 1)..at.value_data].fill(0);
        out[at.value_data + group.bytes..].fill(0);
        make::begin(out, head, at, &[origin]);
        let (front, rest) = out.split_at_mut(at.value_data);
        let mut offsets = front[at.value_offsets + 4..at.value_offsets + 4 * (group.packets + 1)].chunks_exact_mut(4);
        let values = &mut rest[..group.bytes];
        let (mut size, mut number) = (0, group.first_run);
        while let Some(run) = self.runs.get(number) {
            let (mut from, one) = (run.payload, run.size);
            for offset in offsets.by_ref().take(run.packets) {
                copy_ahead(values, size, d, from, one);
                size += one;
                from += run.stride;
                offset.copy_from_slice(&(size as u32).to_le_bytes());
            }
            number = run.next;
        }
        if expiry != 0 {
            let column = &mut out[at.expiries..at.expiries + 8 * group.packets];
            column.chunks_exact_mut(8).for_each(|one| one.copy_from_slice(&expiry.to_le_bytes()));
        }
    }
}

// -- messages ---------------------------------------------------------------------------------------------------------

/// MESSAGE packets that can be written: all entries are checked and the size is known.
pub struct Delivery<'a> {
    topic: u32,
    batch: Batch<'a>,
    first: usize,
    last: usize,
    now: i64,
    pub bytes: usize,
    pub packets: usize,
}

impl<'a> Delivery<'a> {
    pub fn new(topic: u32, data: &'a [u8], first: i64, last: i64, now: i64) -> Result<Delivery<'a>, Refusal> {
        let batch = Batch::open(data, 0)?;
        let (packets, bytes) = blip::measure(&batch, first, last, now)?;
        let bytes = bytes + packets * MESSAGE_HEAD_BYTES;
        Ok(Delivery { topic, batch, first: first as usize, last: last as usize, now, bytes, packets })
    }

    /// Fills exactly `bytes` bytes.
    pub fn fill(&self, out: &mut [u8]) {
        let (d, at) = (self.batch.d, &self.batch.at);
        let mut head = [0; MESSAGE_HEAD_BYTES];
        head[0] = MESSAGE;
        head[1..5].copy_from_slice(&self.topic.to_be_bytes());
        let offsets = &d[at.value_offsets + 4 * self.first..at.value_offsets + 4 * (self.last + 1)];
        let mut to = 0;
        for (i, (a, b)) in offsets.chunks_exact(4).zip(offsets[4..].chunks_exact(4)).enumerate() {
            let expiry = self.batch.expiry(self.first + i);
            if expiry != 0 && expiry <= self.now {
                continue;
            }
            let (a, b) = (batch::i32_at(a, 0) as usize, batch::i32_at(b, 0) as usize);
            head[5..].copy_from_slice(&((b - a) as u32).to_be_bytes());
            out[to..to + MESSAGE_HEAD_BYTES].copy_from_slice(&head);
            copy_ahead(out, to + MESSAGE_HEAD_BYTES, d, at.value_data + a, b - a);
            to += MESSAGE_HEAD_BYTES + b - a;
        }
    }
}

/// What stands in front of the payload of a client's PUBLISH; the length is still zero. The token fits its length byte.
pub fn publish_template(jwt: &[u8], topic: u32) -> Vec<u8> {
    let mut out = vec![PUBLISH, jwt.len() as u8];
    out.extend(jwt);
    out.extend(topic.to_be_bytes());
    out.extend([0; 4]);
    out
}

/// Writes one client PUBLISH at `at`; returns where it ends. out must have room for it.
pub fn put_publish(out: &mut [u8], at: usize, template: &[u8], value: &[u8]) -> usize {
    let (body, end) = (at + template.len(), at + template.len() + value.len());
    out[at..body].copy_from_slice(template);
    out[body - 4..body].copy_from_slice(&(value.len() as u32).to_be_bytes());
    out[body..end].copy_from_slice(value);
    end
}

/// The name of a route: the number of the topic, and the token that may publish there.
pub fn route_name(topic: u32, jwt: &[u8]) -> Vec<u8> {
    [&topic.to_be_bytes(), jwt].concat()
}

/// The answer to a request that was carried out.
pub fn put_ok(out: &mut Vec<u8>, request: u8, topic: u32) {
    out.extend([OK, request]);
    out.extend(topic.to_be_bytes());
    out.extend([0; RESULT_HEAD_BYTES - 6]); // no code, no text
}
