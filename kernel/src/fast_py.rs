//! The Fast TCP functions of `_native.pyi` as Python sees them: arguments in, objects out, refusals as ValueError.
//!
//! The work is in `fast.rs`. The interpreter lock is held throughout; no I/O, no clock, no state.

use crate::batch::KNOWN_FLAGS;
use crate::blip::MAX_U16;
use crate::fast::{self, Known, Next, Same};
use crate::held::Holding;
use crate::routes::Routes;
use crate::tails::Tails;
use crate::{Held, Split, list_of, range, refuse, unzeroed_array, unzeroed_bytes};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

fn payload_bounds(start: i64, payload_max: i64, length: usize) -> PyResult<(usize, usize)> {
    let (start, _) = range(start, length as i64, length)?;
    if payload_max < 1 || payload_max > fast::MAX_PAYLOAD_CEILING_BYTES as i64 {
        return Err(refuse("payload_max must be 1 byte to 32 MiB"));
    }
    Ok((start, payload_max as usize))
}

/// A token that was found in the caller's table, and its origin; None: the token was refused.
struct Token<'a, 'py> {
    jwt: &'a [u8],
    name: Bound<'py, PyBytes>,
    origin: Option<Bound<'py, PyBytes>>,
}

/// The tokens of a read, each looked up when it is first seen in a row.
struct Tokens<'a, 'py> {
    given: &'a Bound<'py, PyDict>,
    seen: Vec<Token<'a, 'py>>,
}

impl<'a, 'py> Tokens<'a, 'py> {
    /// A token and its number in `seen`, or None if the caller's table does not have it.
    fn ask(&mut self, jwt: &'a [u8]) -> PyResult<Option<Known>> {
        if self.seen.last().is_none_or(|last| last.jwt != jwt) {
            let name = PyBytes::new(self.given.py(), jwt);
            let Some(found) = self.given.get_item(&name)? else { return Ok(None) };
            let origin = if found.is_none() { None } else { Some(found.cast_into::<PyBytes>()?) };
            if origin.as_ref().is_some_and(|origin| origin.as_bytes().len() > MAX_U16) {
                return Err(refuse("origin is over 65535 bytes"));
            }
            self.seen.push(Token { jwt, name, origin });
        }
        let number = self.seen.len() - 1;
        Ok(Some(Known { number, accepted: self.seen[number].origin.is_some() }))
    }
}

/// (batch flags, expiry or 0) of a topic, by the caller's table of (flags, ttl_us).
fn topic_rule(topics: &Bound<'_, PyDict>, topic: u32, now: i64) -> PyResult<(u16, i64)> {
    let Some(rule) = topics.get_item(topic)? else { return Ok((0, 0)) };
    let (flags, ttl): (i64, i64) = rule.extract()?;
    if flags < 0 || flags > i64::from(KNOWN_FLAGS) {
        return Err(refuse("unknown batch flag; known are bits 0 to 2"));
    }
    if !(0..1 << 62).contains(&ttl) {
        return Err(refuse("a time to live must be 0 (none) to 2**62 - 1 microseconds"));
    }
    Ok((flags as u16, if ttl == 0 { 0 } else { now + ttl }))
}

/// Where splitting ended: behind which byte, the number of what is fatal there, and the token that nobody knows.
type End<'a> = (usize, u8, Option<&'a [u8]>);

/// Where publishes go whose topic and token are known, and what is answered: until a packet comes that Python has to act on first.
#[derive(Default)]
struct Direct<'a> {
    known: Option<(&'a mut Tails, &'a Routes)>,
    answered: bool,
    last: Option<&'a Py<PyAny>>,
    answers: Vec<u8>,
    holding: Holding,
    later: Vec<u8>,        // the answers behind what is in files
    held: Vec<(u32, u64)>, // topic and packets, 0 if nobody waits to hear of them
}

impl Direct<'_> {
    /// Append a batch of this size, of which `fill` writes every byte. False: Python decides.
    fn append<'py>(
        &mut self,
        py: Python<'py>,
        (topic, jwt): (u32, &[u8]),
        (count, size): (u64, usize),
        now: i64,
        fill: &dyn Fn(&mut [u8]),
    ) -> PyResult<bool> {
        let Some((tails, routes)) = &mut self.known else { return Ok(false) };
        let Some(route) = routes.find(&fast::route_name(topic, jwt)) else { return Ok(false) };
        if !tails.publish(py, route.handle, count, size, fill)? {
            if !tails.takes_lent(route.handle, -1, size) {
                return Ok(false);
            }
            let (batch, number) = (unzeroed_array(py, size, fill)?.unbind(), self.held.len());
            self.holding.append(py, tails, route.handle, -1, count, &batch, now, number)?;
        }
        let mut answers = &mut self.answers;
        if self.holding.ways != 0 {
            self.held.push((topic, if self.answered || route.keeps { count } else { 0 }));
            answers = &mut self.later; // behind what is waited for
        }
        if self.answered {
            (0..count).for_each(|_| fast::put_ok(answers, fast::PUBLISH, topic));
        }
        self.last = Some(&route.topic);
        Ok(true)
    }
}

/// What decides what the packets of a read become.
struct Splitter<'a, 'py> {
    tokens: Tokens<'a, 'py>,
    same: Same<'a>,
    topics: &'a Bound<'py, PyDict>,
    now: i64,
    items: Bound<'py, PyList>,
    direct: Direct<'a>,
}

impl<'a, 'py> Splitter<'a, 'py> {
    fn run(&mut self, d: &'a [u8], mut pos: usize, payload_max: usize) -> PyResult<End<'a>> {
        let py = self.items.py();
        loop {
            let (kind, body, end) = match fast::next_request(d, pos, payload_max, self.same.is_some()) {
                Next::Packet { kind, body, end } => (kind, body, end),
                Next::Wait => return Ok((pos, 0, None)),
                Next::Fatal(fatal) => return Ok((pos, fatal, None)),
            };
            if kind == fast::PUBLISH {
                let ask = |jwt| self.tokens.ask(jwt);
                let (window, (stop, unknown)) = fast::publishes(d, pos, payload_max, &mut self.same, ask)?;
                self.append_groups(d, &window)?;
                pos = stop;
                if unknown.is_some() {
                    return Ok((pos, 0, unknown));
                }
                continue;
            }
            self.direct.known = None; // what comes behind it must not overtake it
            if kind == fast::EXTEND {
                self.items.append((kind, d[pos + 1]))?;
                return Ok((end, 0, None));
            }
            let jwt = fast::meant(&d[pos + 2..body], self.same);
            let Some(known) = self.tokens.ask(jwt)? else { return Ok((pos, 0, Some(jwt))) };
            fast::follow(&mut self.same, jwt, known);
            let name = &self.tokens.seen[known.number].name;
            match kind {
                fast::CREATE => self.items.append((kind, name, PyBytes::new(py, &d[body + 1..end - 1]), d[end - 1]))?,
                fast::RECORDS => {
                    self.items.append((kind, name, fast::u32_be(d, body), PyBytes::new(py, &d[body + 8..end])))?;
                }
                fast::ROTATE => {
                    self.items.append((kind, name, fast::u32_be(d, body), PyBytes::new(py, &d[body + 5..end])))?;
                }
                _ => self.items.append((kind, name, fast::u32_be(d, body)))?,
            }
            pos = end;
            if kind == fast::CREATE || kind == fast::ROTATE {
                return Ok((pos, 0, None));
            }
        }
    }

    fn append_groups(&mut self, d: &[u8], window: &fast::Window<'_>) -> PyResult<()> {
        let py = self.items.py();
        for group in &window.groups {
            let token = &self.tokens.seen[group.token.number];
            let Some(origin) = token.origin.as_ref().map(|origin| origin.as_bytes()) else {
                self.direct.known = None;
                self.items.append((fast::PUBLISH, &token.name, group.topic, py.None(), group.packets))?;
                continue;
            };
            let (flags, expiry) = topic_rule(self.topics, group.topic, self.now)?;
            let plan = window.plan(group, origin, flags, expiry).map_err(refuse)?;
            let size = plan.0.length;
            let fill = |out: &mut [u8]| window.fill(d, group, &plan, origin, expiry, out);
            let count = group.packets as u64;
            if !self.direct.append(py, (group.topic, token.jwt), (count, size), self.now, &fill)? {
                self.direct.known = None;
                self.items.append((fast::PUBLISH, &token.name, group.topic, unzeroed_array(py, size, fill)?, count))?;
            }
        }
        Ok(())
    }
}

type SplitEnd<'py> = (Bound<'py, PyList>, usize, u8, Option<Bound<'py, PyBytes>>, Option<Bound<'py, PyBytes>>);

#[allow(clippy::too_many_arguments)]
fn split<'a, 'py>(
    d: &'a [u8],
    start: i64,
    payload_max: i64,
    tokens: &'a Bound<'py, PyDict>,
    topics: &'a Bound<'py, PyDict>,
    now: i64,
    same: &'a Option<Bound<'py, PyBytes>>,
    direct: Direct<'a>,
) -> PyResult<(SplitEnd<'py>, Direct<'a>)> {
    let py = tokens.py();
    let (pos, payload_max) = payload_bounds(start, payload_max, d.len())?;
    if !(0..1 << 62).contains(&now) {
        return Err(refuse("now must be microseconds since 1970"));
    }
    let given = same.as_ref().map(|token| token.as_bytes());
    if given.is_some_and(|token| token.len() > fast::MAX_TOKEN_BYTES) {
        return Err(refuse("same is over 255 bytes; no token is"));
    }
    let tokens = Tokens { given: tokens, seen: Vec::new() };
    let mut splitter = Splitter { tokens, same: given, topics, now, items: PyList::empty(py), direct };
    let (end, fatal, unknown) = splitter.run(d, pos, payload_max)?;
    let unknown = unknown.map(|jwt| PyBytes::new(py, jwt));
    let behind = if splitter.same == given { same.clone() } else { splitter.same.map(|jwt| PyBytes::new(py, jwt)) };
    Ok(((splitter.items, end, fatal, unknown, behind), splitter.direct))
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn fast_split<'py>(
    data: &Bound<'py, PyAny>,
    start: i64,
    payload_max: i64,
    tokens: &Bound<'py, PyDict>,
    topics: &Bound<'py, PyDict>,
    now: i64,
    same: Option<Bound<'py, PyBytes>>,
) -> PyResult<SplitEnd<'py>> {
    let held = Held::new(data)?;
    Ok(split(held.bytes(), start, payload_max, tokens, topics, now, &same, Direct::default())?.0)
}

/// Ticket, the answers to what waits, topic and packets of each group, ways.
pub type HeldOf<'py> = (u64, Bound<'py, PyBytes>, Vec<(u32, u64)>, u8);
pub type Appended<'py> = (
    Bound<'py, PyBytes>,
    Bound<'py, PyList>,
    usize,
    u8,
    Option<Bound<'py, PyBytes>>,
    Option<Bound<'py, PyBytes>>,
    Option<Py<PyAny>>,
    Option<HeldOf<'py>>,
);

#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn fast_append<'py>(
    py: Python<'py>,
    tails: &Bound<'py, Tails>,
    routes: &Bound<'py, Routes>,
    data: &Bound<'py, PyAny>,
    start: i64,
    payload_max: i64,
    tokens: &Bound<'py, PyDict>,
    topics: &Bound<'py, PyDict>,
    now: i64,
    same: Option<Bound<'py, PyBytes>>,
    answered: bool,
) -> PyResult<Appended<'py>> {
    let held = Held::new(data)?;
    let (mut tails, routes) = (tails.try_borrow_mut()?, routes.try_borrow()?);
    let direct = Direct { known: Some((&mut *tails, &*routes)), answered, ..Direct::default() };
    let ((items, end, fatal, unknown, behind), direct) =
        split(held.bytes(), start, payload_max, tokens, topics, now, &same, direct)?;
    let Direct { last, answers, holding, later, held, .. } = direct;
    let last = last.map(|topic| topic.clone_ref(py));
    let held = (holding.ways != 0).then(|| (holding.ticket, PyBytes::new(py, &later), held, holding.ways));
    Ok((PyBytes::new(py, &answers), items, end, fatal, unknown, behind, last, held))
}

#[pyfunction]
pub fn fast_deliver<'py>(
    py: Python<'py>,
    topic_id: u32,
    batch: &Bound<'py, PyAny>,
    first: i64,
    last: i64,
    now: i64,
) -> PyResult<(Bound<'py, PyBytes>, usize)> {
    let held = Held::new(batch)?;
    let delivery = fast::Delivery::new(topic_id, held.bytes(), first, last, now).map_err(refuse)?;
    let packets = unzeroed_bytes(py, delivery.bytes, |out| delivery.fill(out))?;
    Ok((packets, delivery.packets))
}

#[pyfunction]
pub fn fast_publish<'py>(
    py: Python<'py>,
    jwt: &[u8],
    topic_id: u32,
    values: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    if jwt.len() > fast::MAX_TOKEN_BYTES {
        return Err(refuse("token is over 255 bytes; mint one with fewer or shorter claims"));
    }
    let values = list_of(values)?.iter().map(|one| Ok(one.cast_into::<PyBytes>()?)).collect::<PyResult<Vec<_>>>()?;
    let template = fast::publish_template(jwt, topic_id);
    let mut total = 0;
    for value in &values {
        let size = value.as_bytes().len();
        if size > fast::MAX_PAYLOAD_CEILING_BYTES {
            return Err(refuse("message too large: a payload is over 32 MiB"));
        }
        total += template.len() + size;
    }
    unzeroed_bytes(py, total, |out| {
        values.iter().fold(0, |at, value| fast::put_publish(out, at, &template, value.as_bytes()));
    })
}

#[pyfunction]
pub fn fast_received<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    start: i64,
    payload_max: i64,
) -> PyResult<Split<'py>> {
    let held = Held::new(data)?;
    let d = held.bytes();
    let (mut pos, payload_max) = payload_bounds(start, payload_max, d.len())?;
    let items = PyList::empty(py);
    loop {
        let (kind, end) = match fast::next_reply(d, pos, payload_max) {
            Next::Packet { kind, end, .. } => (kind, end),
            Next::Wait => return Ok((items, pos, 0)),
            Next::Fatal(fatal) => return Ok((items, pos, fatal)),
        };
        match kind {
            fast::MESSAGE => {
                let (topic, head) = (fast::u32_be(d, pos + 1), &d[pos..pos + 5]);
                let values = PyList::empty(py);
                let mut next = Some(end);
                while let Some(end) = next {
                    values.append(PyBytes::new(py, &d[pos + fast::MESSAGE_HEAD_BYTES..end]))?;
                    pos = end;
                    next = match fast::next_reply(d, pos, payload_max) {
                        Next::Packet { end, .. } if d[pos..].starts_with(head) => Some(end),
                        _ => None,
                    };
                }
                items.append((kind, topic, values))?;
                continue;
            }
            fast::MESSAGES => {
                let data = PyBytes::new(py, &d[pos + fast::MESSAGE_HEAD_BYTES..end]);
                items.append((kind, fast::u32_be(d, pos + 1), data))?;
            }
            fast::KEY_UPDATE => items.append((kind, fast::u32_be(d, pos + 1), PyBytes::new(py, &d[pos + 6..end])))?,
            fast::OK => {
                let (one, rest) = (&d[pos..end], &d[pos..]);
                let count = rest.chunks_exact(one.len()).take_while(|next| *next == one).count();
                items.append((kind, d[pos + 1], fast::u32_be(d, pos + 2), count))?;
                pos += count * one.len();
                continue;
            }
            _ => {
                let code = u16::from_be_bytes([d[pos + 6], d[pos + 7]]);
                let message = PyBytes::new(py, &d[pos + fast::RESULT_HEAD_BYTES..end]);
                items.append((kind, d[pos + 1], fast::u32_be(d, pos + 2), code, message))?;
            }
        }
        pos = end;
    }
}
