//! BlipMQ between Python and `blip.rs`: the functions `blip_*` of `_native.pyi`.
//!
//! Only the talking to Python lives here: arguments in, objects out, refusals as ValueError. The interpreter lock is held
//! throughout; no I/O, no clock, no state.

use crate::batch::AT_MOST_ONCE;
use crate::held::Holding;
use crate::routes::Routes;
use crate::tails::Tails;
use crate::{Held, Split, blip, list_of, range, records, refuse, topic_fits, unzeroed_array, unzeroed_bytes};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyList};

/// Batches of a record set that is appended to files here. Each is asked for its room by itself, so what all of them take is bounded.
const AHEAD: usize = 8; // groups between the fetch of a tail and its use: by then memory has answered
const HELD_SET_BYTES_MAX: usize = 1024 * 1024;

fn frame_bounds(start: i64, max_frame: i64, length: usize) -> PyResult<(usize, usize)> {
    let (start, _) = range(start, length as i64, length)?;
    if max_frame < blip::MIN_LENGTH as i64 || max_frame > blip::MAX_FRAME_CEILING_BYTES as i64 {
        return Err(refuse("max_frame must be 9 bytes to 32 MiB"));
    }
    Ok((start, max_frame as usize))
}

fn version_of(version: i64) -> PyResult<u8> {
    match version {
        1 | 2 => Ok(version as u8),
        _ => Err(refuse("BlipMQ version must be 1 or 2")),
    }
}

fn qos_of(qos: i64) -> PyResult<u8> {
    match qos {
        0 | 1 => Ok(qos as u8),
        _ => Err(refuse("BlipMQ QoS must be 0 or 1")),
    }
}

/// A run of ACK or POLL frames of one subscription that starts at pos: (subscription, cids), and where it ends.
fn subscription_run(d: &[u8], mut pos: usize, kind: u8, max_frame: usize) -> (u64, Vec<u64>, usize) {
    let subscription = blip::u64_be(d, pos + blip::FRAME_BYTES);
    let mut cids = Vec::new();
    while let blip::Next::Frame { kind: found, end } = blip::next_frame(d, pos, max_frame, blip::DELIVER) {
        let same = found == kind
            && end - pos == blip::FRAME_BYTES + 8
            && blip::u64_be(d, pos + blip::FRAME_BYTES) == subscription;
        if !same {
            break;
        }
        cids.push(blip::u64_be(d, pos + 5));
        pos = end;
    }
    (subscription, cids, pos)
}

fn tag_ranges(cids: &[u64]) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for &cid in cids {
        match ranges.last_mut() {
            Some((first, count)) if first.checked_add(*count) == Some(cid) => *count += 1,
            _ => ranges.push((cid, 1)),
        }
    }
    ranges
}

#[pyfunction]
#[pyo3(signature = (data, start, version, max_frame, origin, now, sets=None))]
#[allow(clippy::too_many_arguments)]
pub fn blip_split<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    start: i64,
    version: i64,
    max_frame: i64,
    origin: &[u8],
    now: i64,
    sets: Option<&Bound<'py, PyDict>>,
) -> PyResult<Split<'py>> {
    let mut direct = Direct { sets, ..Direct::default() };
    split(py, &mut direct, data, start, version, max_frame, origin, now)
}

#[pyfunction]
#[pyo3(signature = (tails, routes, data, start, version, max_frame, origin, now, sets=None, append_sets=true))]
#[allow(clippy::too_many_arguments)]
pub fn blip_append<'py>(
    py: Python<'py>,
    tails: &Bound<'py, Tails>,
    routes: &Bound<'py, Routes>,
    data: &Bound<'py, PyAny>,
    start: i64,
    version: i64,
    max_frame: i64,
    origin: &[u8],
    now: i64,
    sets: Option<&Bound<'py, PyDict>>,
    append_sets: bool,
) -> PyResult<Appended<'py>> {
    let (mut tails, routes) = (tails.try_borrow_mut()?, routes.try_borrow()?);
    let known = Some((&mut *tails, &*routes));
    let mut direct = Direct { known, sets, append_sets, ..Direct::default() };
    let (items, end, fatal) = split(py, &mut direct, data, start, version, max_frame, origin, now)?;
    let last = direct.last.map(|topic| topic.clone_ref(py));
    let entries = direct.held.into_iter().map(|(ids, pongs)| (ids, PyBytes::new(py, &pongs)));
    let held = (direct.holding.ways != 0).then(|| (direct.holding.ticket, entries.collect(), direct.holding.ways));
    Ok((PyBytes::new(py, &direct.pongs), items, end, fatal, last, held))
}

/// Ticket, what waits (the ids to refuse it by, and the pongs behind it), ways.
pub type HeldOf<'py> = (u64, Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>, u8);
pub type Appended<'py> = (Bound<'py, PyBytes>, Bound<'py, PyList>, usize, u8, Option<Py<PyAny>>, Option<HeldOf<'py>>);

/// Where publishes go whose topics are known, and the answers to PINGs: until a frame comes that Python has to act on first.
#[derive(Default)]
struct Direct<'a, 'py> {
    known: Option<(&'a mut Tails, &'a Routes)>,
    last: Option<&'a Py<PyAny>>,
    pongs: Vec<u8>,
    sets: Option<&'a Bound<'py, PyDict>>, // whose RECORDS frames are taken apart here: heads, and the partitions behind them
    append_sets: bool,                    // and appended, if their topic is known
    holding: Holding,
    held: Vec<(Bound<'py, PyBytes>, Vec<u8>)>, // what is in files, and the pongs that wait for it
}

impl Direct<'_, '_> {
    /// Where the answer to a PING goes: behind what it asks for.
    fn answers(&mut self) -> &mut Vec<u8> {
        self.held.last_mut().map_or(&mut self.pongs, |(_, behind)| behind)
    }
}

#[allow(clippy::too_many_arguments)]
fn split<'py>(
    py: Python<'py>,
    direct: &mut Direct<'_, 'py>,
    data: &Bound<'py, PyAny>,
    start: i64,
    version: i64,
    max_frame: i64,
    origin: &[u8],
    now: i64,
) -> PyResult<Split<'py>> {
    let held = Held::new(data)?;
    let d = held.bytes();
    let (mut pos, max_frame) = frame_bounds(start, max_frame, d.len())?;
    // 3: version 2 with record sets and patterns. Python takes apart patterns, and the sets for which nobody was asked yet.
    let last_type = match version {
        3 => blip::MATCH,
        2 => blip::DELIVER,
        _ => blip::POLL,
    };
    let version = version_of(if version == 3 { 2 } else { version })?;
    if origin.len() > blip::MAX_U16 {
        return Err(refuse("origin is over 65535 bytes"));
    }
    if !(0..1 << 62).contains(&now) {
        return Err(refuse("now must be microseconds since 1970"));
    }
    let items = PyList::empty(py);
    loop {
        let (kind, end) = match blip::next_frame(d, pos, max_frame, last_type) {
            blip::Next::Frame { kind, end } => (kind, end),
            blip::Next::Wait => return Ok((items, pos, 0)),
            blip::Next::Fatal(fatal) => return Ok((items, pos, fatal)),
        };
        let payload = pos + blip::FRAME_BYTES;
        let cid = blip::u64_be(d, pos + 5);
        if kind == blip::RECORDS
            && let Some(sets) = direct.sets
            && let Some((head, partitions, set)) = known_set(py, sets, &d[payload..end], now)?
        {
            append_set(py, direct, &items, (cid, head, partitions), &set, origin, now)?;
            pos = end;
            continue;
        }
        if kind != blip::PUBLISH && kind != blip::PING {
            direct.known = None; // what comes behind it must not overtake it
        }
        match kind {
            blip::PUBLISH => {
                let routes = direct.known.as_ref().map(|(_, routes)| *routes);
                let (window, stop, error) = blip::publishes(d, pos, version, max_frame, routes);
                append_groups(py, direct, &items, d, &window, origin, now)?;
                pos = stop;
                if error != 0 {
                    direct.known = None;
                    items.append((0, blip::u64_be(d, pos + 5), error))?;
                    pos += 4 + u32::from_be_bytes([d[pos], d[pos + 1], d[pos + 2], d[pos + 3]]) as usize;
                }
                continue;
            }
            blip::PING if direct.known.is_some() => blip::put_pong(direct.answers(), cid),
            blip::ACK | blip::POLL if end - payload != 8 => {
                items.append((0, cid, if kind == blip::ACK { blip::BAD_ACK } else { blip::BAD_POLL }))?;
            }
            blip::ACK | blip::POLL if blip::u64_be(d, payload) == 0 => {
                items.append((0, cid, blip::ZERO_SUBSCRIPTION))?;
            }
            blip::ACK | blip::POLL => {
                let (subscription, cids, stop) = subscription_run(d, pos, kind, max_frame);
                if kind == blip::ACK {
                    items.append((kind, subscription, tag_ranges(&cids)))?;
                } else {
                    items.append((kind, subscription, cids))?;
                }
                pos = stop;
                continue;
            }
            _ => items.append((kind, cid, PyBytes::new(py, &d[payload..end])))?,
        }
        pos = end;
        if kind == blip::HELLO || kind == blip::AUTH {
            return Ok((items, pos, 0));
        }
    }
}

fn append_groups<'a, 'py>(
    py: Python<'py>,
    direct: &mut Direct<'a, 'py>,
    items: &Bound<'py, PyList>,
    d: &[u8],
    window: &blip::Window<'_, 'a>,
    origin: &[u8],
    now: i64,
) -> PyResult<()> {
    for (number, group) in window.groups.iter().enumerate() {
        if let Some((tails, _)) = &direct.known {
            let handle = |ahead: usize| window.groups.get(number + ahead)?.route.map(|route| route.handle);
            handle(2 * AHEAD).inspect(|handle| tails.fetch_topic(*handle));
            handle(AHEAD).inspect(|handle| tails.fetch_tail(*handle));
        }
        let plan = window.plan(group, origin).map_err(refuse)?;
        let fill = |out: &mut [u8]| window.fill(d, group, &plan, origin, now, out);
        let make = || unzeroed_array(py, plan.0.length, fill);
        let ids = || unzeroed_bytes(py, 8 * group.frames, |out| window.fill_ids(d, group, out));
        if let Some((tails, _)) = &mut direct.known
            && let Some(route) = group.route
            && (group.qos == 0 || route.keeps)
        {
            let count = group.frames as u64;
            if tails.publish(py, route.handle, count, plan.0.length, fill)? {
                direct.last = Some(&route.topic);
                continue;
            }
            if tails.takes_lent(route.handle, -1, plan.0.length) {
                let (batch, number) = (make()?.unbind(), direct.held.len());
                direct.holding.append(py, tails, route.handle, -1, count, &batch, now, number)?;
                direct.held.push((if group.qos == 0 { PyBytes::new(py, &[]) } else { ids()? }, Vec::new()));
                direct.last = Some(&route.topic);
                continue;
            }
        }
        direct.known = None;
        let (batch, ids) = (make()?, ids()?);
        items.append((blip::PUBLISH, group.qos, PyBytes::new(py, group.topic), batch, ids))?;
    }
    Ok(())
}

/// The head of a RECORDS payload whose target is known, its partitions, and the records. None: Python looks at it, and says what is wrong.
fn known_set<'a>(
    py: Python<'_>,
    sets: &Bound<'_, PyDict>,
    payload: &'a [u8],
    now: i64,
) -> PyResult<Option<(&'a [u8], i64, records::Split<'a>)>> {
    let Some(head) = blip::records_head(payload) else { return Ok(None) };
    let Some(partitions) = sets.get_item(PyBytes::new(py, head))? else { return Ok(None) };
    let partitions: i64 = partitions.extract()?;
    if !(1..=i64::from(i32::MAX)).contains(&partitions) {
        return Err(refuse("a topic has 1 to 2**31 - 1 partitions"));
    }
    let found = records::Split::new(&payload[head.len()..], records::ANY, partitions as u32, now);
    Ok(found.ok().map(|set| (head, partitions, set)))
}

/// Partition, batch and records of a group of a set.
type GroupOf<'py> = (i32, Bound<'py, PyByteArray>, u64);

/// A record set goes to its topic if that is known, and all its partitions are there; else it comes out, by partition.
fn append_set<'py>(
    py: Python<'py>,
    direct: &mut Direct<'_, 'py>,
    items: &Bound<'py, PyList>,
    (cid, head, partitions): (u64, &[u8], i64),
    set: &records::Split<'_>,
    origin: &[u8],
    now: i64,
) -> PyResult<()> {
    let flags = if head[0] == 0 { AT_MOST_ONCE } else { 0 };
    let make = |number: usize| {
        let plan = set.plan(number, origin, flags).map_err(refuse)?;
        let batch = unzeroed_array(py, plan.0.length, |out| set.fill(number, &plan, origin, out))?;
        let (partition, count) = set.group(number);
        Ok::<_, PyErr>((partition, batch, count as u64))
    };
    let groups = (0..set.group_count()).map(make).collect::<PyResult<Vec<_>>>()?;
    if let Some((tails, routes)) = &mut direct.known
        && direct.append_sets
        && let Some(route) = routes.find(&head[blip::RECORDS_TOPIC_AT..])
        && (head[0] == 0 || route.keeps)
    {
        if groups.iter().all(|(partition, ..)| tails.takes(route.handle, *partition)) {
            for (partition, batch, count) in groups {
                tails.publish_at(py, route.handle, partition, count, &batch.unbind(), now)?;
            }
            direct.last = Some(&route.topic);
            return Ok(());
        }
        let size = groups.iter().map(|(_, batch, _)| batch.len()).sum::<usize>();
        let fits = |(partition, batch, _): &GroupOf<'py>| tails.takes_lent(route.handle, *partition, batch.len());
        if size <= HELD_SET_BYTES_MAX && groups.iter().all(fits) {
            let number = direct.held.len();
            for (partition, batch, count) in groups {
                direct.holding.append(py, tails, route.handle, partition, count, &batch.unbind(), now, number)?;
            }
            let refused_by = if head[0] == 0 { PyBytes::new(py, &[]) } else { PyBytes::new(py, &cid.to_le_bytes()) };
            direct.held.push((refused_by, Vec::new()));
            direct.last = Some(&route.topic);
            return Ok(());
        }
    }
    direct.known = None;
    items.append((blip::RECORDS, cid, PyBytes::new(py, head), partitions, groups))
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn blip_deliver<'py>(
    py: Python<'py>,
    version: i64,
    topic: &[u8],
    qos: i64,
    batch: &Bound<'py, PyAny>,
    first: i64,
    last: i64,
    first_tag: u64,
    ids: &[u8],
    now: i64,
) -> PyResult<(Bound<'py, PyBytes>, usize)> {
    let (version, qos) = (version_of(version)?, qos_of(qos)?);
    topic_fits(topic)?;
    let held = Held::new(batch)?;
    let wish = blip::DeliveryWish { version, topic, qos, data: held.bytes(), first, last, first_tag, ids, now };
    let delivery = blip::Delivery::new(wish).map_err(refuse)?;
    let frames = unzeroed_bytes(py, delivery.bytes, |out| delivery.fill(out))?;
    Ok((frames, delivery.frames))
}

#[pyfunction]
pub fn blip_publish<'py>(
    py: Python<'py>,
    topic: &[u8],
    qos: i64,
    values: &Bound<'py, PyAny>,
    first_id: u64,
    ttl_ms: u32,
) -> PyResult<Bound<'py, PyBytes>> {
    let qos = qos_of(qos)?;
    topic_fits(topic)?;
    let values = list_of(values)?.iter().map(|one| Ok(one.cast_into::<PyBytes>()?)).collect::<PyResult<Vec<_>>>()?;
    if first_id != 0 && first_id.checked_add((values.len() as u64).saturating_sub(1)).is_none() {
        return Err(refuse("correlation ids leave the unsigned 64-bit range"));
    }
    let template = blip::publish_template(topic, qos, ttl_ms);
    let mut total = 0;
    for value in &values {
        let size = template.len() + value.as_bytes().len();
        if size - 4 > blip::MAX_FRAME_CEILING_BYTES {
            return Err(refuse("message too large: a frame is over 32 MiB"));
        }
        total += size;
    }
    PyBytes::new_with(py, total, |out| {
        let (mut at, mut id) = (0, first_id);
        for value in &values {
            at = blip::put_publish(out, at, &template, id, value.as_bytes());
            id = if first_id == 0 { 0 } else { id.wrapping_add(1) };
        }
        Ok(())
    })
}

#[pyfunction]
pub fn blip_received<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    start: i64,
    max_frame: i64,
) -> PyResult<Split<'py>> {
    let held = Held::new(data)?;
    let d = held.bytes();
    let (mut pos, max_frame) = frame_bounds(start, max_frame, d.len())?;
    let items = PyList::empty(py);
    let mut run: Option<(u8, &[u8], Bound<'py, PyList>)> = None;
    loop {
        let (kind, end) = match blip::next_frame(d, pos, max_frame, blip::MATCH) {
            blip::Next::Frame { kind, end } => (kind, end),
            blip::Next::Wait => return Ok((items, pos, 0)),
            blip::Next::Fatal(fatal) => return Ok((items, pos, fatal)),
        };
        let (payload, cid) = (pos + blip::FRAME_BYTES, blip::u64_be(d, pos + 5));
        if kind != blip::PUBLISH && kind != blip::DELIVER {
            run = None;
            items.append((kind, cid, PyBytes::new(py, &d[payload..end])))?;
            pos = end;
            continue;
        }
        let known = run.as_ref().map_or(&[][..], |run| run.1);
        let Some((topic, qos, body)) = blip::parse_delivery(d, payload, end, kind, known) else {
            return Ok((items, pos, blip::BAD_DELIVERY));
        };
        let message = (cid, qos, PyBytes::new(py, &d[body..end]));
        match &run {
            Some((same_kind, same_topic, messages)) if *same_kind == kind && *same_topic == topic => {
                messages.append(message)?;
            }
            _ => {
                let messages = PyList::empty(py);
                messages.append(message)?;
                items.append((kind, PyBytes::new(py, topic), &messages))?;
                run = Some((kind, topic, messages));
            }
        }
        pos = end;
    }
}
