//! The Felix functions of `_native.pyi` as Python sees them: arguments in, objects out, refusals as ValueError.
//!
//! The work is in `felix.rs` and `felix_json.rs`. The interpreter lock is held throughout; no I/O, no clock, no state.

use crate::blip::{MAX_GROUP_RECORDS, MAX_U16, u64_be};
use crate::cache::CacheMemory;
use crate::felix::{self, Front, Group, Next, Values};
use crate::felix_json::{self, Scope};
use crate::{Held, Split, list_of, range, refuse, unzeroed_array, unzeroed_bytes};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyList, PyTuple};

const JSON_ITEM: u8 = 0;
const BATCH_ITEM: u8 = 1;
const MALFORMED_ITEM: u8 = 2;
const FLAGS_ITEM: u8 = 3;
const PACKED_ITEM: u8 = 4;
const NO_REQUEST: i8 = -1;

pub fn frame_max(frame_bytes_max: i64) -> PyResult<usize> {
    if frame_bytes_max < 1 || frame_bytes_max > felix::MAX_FRAME_CEILING_BYTES as i64 {
        return Err(refuse("frame_bytes_max must be 1 byte to 32 MiB"));
    }
    Ok(frame_bytes_max as usize)
}

fn frame_bounds(start: i64, frame_bytes_max: i64, length: usize) -> PyResult<(usize, usize)> {
    let (start, _) = range(start, length as i64, length)?;
    Ok((start, frame_max(frame_bytes_max)?))
}

fn key_flag_fits(key_flag: u16) -> PyResult<()> {
    if key_flag != felix::PACKED && key_flag != felix::KEYED {
        return Err(refuse("key_flag must be 0x0040 or 0x0100"));
    }
    Ok(())
}

pub fn origin_fits(origin: &[u8], now: i64) -> PyResult<()> {
    if origin.len() > MAX_U16 {
        return Err(refuse("origin is over 65535 bytes"));
    }
    if !(0..1 << 62).contains(&now) {
        return Err(refuse("now must be microseconds since 1970"));
    }
    Ok(())
}

/// A number on the wire, or -1 if there is none.
fn or_none<'py>(py: Python<'py>, number: Option<u64>) -> PyResult<Bound<'py, PyAny>> {
    match number {
        Some(number) => Ok(number.into_pyobject(py)?.into_any()),
        None => Ok(NO_REQUEST.into_pyobject(py)?.into_any()),
    }
}

fn batch_item<'py>(py: Python<'py>, d: &[u8], group: &Group<'_>, origin: &[u8]) -> PyResult<Bound<'py, PyTuple>> {
    let batch: Option<Bound<'py, PyByteArray>> = match group.count {
        0 => None,
        _ => {
            let plan = group.plan(origin).map_err(refuse)?;
            Some(unzeroed_array(py, plan.0.length, |out| group.fill(d, &plan, origin, out))?)
        }
    };
    let request_id = or_none(py, group.request_id)?;
    let target = PyBytes::new(py, group.target);
    match group.key {
        None => (BATCH_ITEM, target, batch, group.count, request_id, group.ack_mode).into_pyobject(py),
        Some(key) => {
            let key = PyBytes::new(py, key);
            (BATCH_ITEM, target, batch, group.count, request_id, group.ack_mode, key).into_pyobject(py)
        }
    }
}

fn malformed_item<'py>(py: Python<'py>, fault: &felix::Malformed) -> PyResult<Bound<'py, PyTuple>> {
    (MALFORMED_ITEM, fault.code, or_none(py, fault.request_id)?).into_pyobject(py)
}

/// The items of a read: unacknowledged batches wait, as long as their neighbours go to the same target.
struct Splitter<'a, 'py> {
    d: &'a [u8],
    known: u16,
    key_flag: u16,
    strict: bool,
    origin: &'a [u8],
    items: Bound<'py, PyList>,
    waiting: Option<Group<'a>>,
}

impl<'a> Splitter<'a, '_> {
    fn flush(&mut self) -> PyResult<()> {
        match self.waiting.take() {
            Some(group) => self.items.append(batch_item(self.items.py(), self.d, &group, self.origin)?),
            None => Ok(()),
        }
    }

    fn unacked(&mut self, group: Group<'a>) -> PyResult<()> {
        if !self.waiting.as_mut().is_some_and(|last| last.join(&group)) {
            self.flush()?;
            self.waiting = Some(group);
        }
        Ok(())
    }

    fn take(&mut self, flags: u16, at: usize, end: usize) -> PyResult<()> {
        const BATCH: u16 = felix::BATCH;
        const ACKED: u16 = felix::BATCH | felix::ACKED;
        const PACKED: u16 = felix::BATCH | felix::PACKED;
        const ACKED_PACKED: u16 = ACKED | felix::PACKED;
        let (py, d) = (self.items.py(), self.d);
        let meant = if self.strict { flags } else { flags & self.known };
        let is_known = meant & !self.known == 0;
        let kind = meant & !self.key_flag;
        if is_known && (kind == BATCH || kind == ACKED) {
            let known = self.waiting.as_ref().map_or(&[][..], |last| last.target);
            let front = Front { acked: kind == ACKED, keyed: kind != meant };
            return match Group::parse(d, at, end, front, known) {
                Ok(group) if kind == BATCH => self.unacked(group),
                Ok(group) => {
                    self.flush()?;
                    self.items.append(batch_item(py, d, &group, self.origin)?)
                }
                Err(fault) => {
                    self.flush()?;
                    self.items.append(malformed_item(py, &fault)?)
                }
            };
        }
        self.flush()?;
        match kind {
            0 if meant == 0 => self.items.append((JSON_ITEM, PyBytes::new(py, &d[at..end]))),
            // A record set, packed or not, is taken apart by Python.
            _ if is_known
                && meant & felix::RECORDS != 0
                && matches!(meant & !felix::RECORDS, BATCH | ACKED | PACKED | ACKED_PACKED) =>
            {
                self.items.append((PACKED_ITEM, meant, PyBytes::new(py, &d[at..end])))
            }
            PACKED | ACKED_PACKED if is_known => self.items.append((PACKED_ITEM, meant, PyBytes::new(py, &d[at..end]))),
            _ => {
                // Whatever else a bit stands for, the request_id of an acknowledged batch comes first.
                let id = if flags & ACKED == ACKED { felix::request_id_of(d, at, end) } else { None };
                self.items.append((FLAGS_ITEM, flags, or_none(py, id)?))
            }
        }
    }
}

#[pyfunction]
#[pyo3(signature = (data, start, frame_bytes_max, known, strict, origin, now, key_flag=0))]
#[allow(clippy::too_many_arguments)]
pub fn felix_split<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    start: i64,
    frame_bytes_max: i64,
    known: u16,
    strict: bool,
    origin: &[u8],
    now: i64,
    key_flag: u16,
) -> PyResult<Split<'py>> {
    let held = Held::new(data)?;
    let d = held.bytes();
    let (mut pos, frame_bytes_max) = frame_bounds(start, frame_bytes_max, d.len())?;
    origin_fits(origin, now)?;
    if key_flag != 0 {
        key_flag_fits(key_flag)?;
    }
    let mut splitter = Splitter { d, known, key_flag, strict, origin, items: PyList::empty(py), waiting: None };
    let fatal = loop {
        match felix::next_frame(d, pos, frame_bytes_max) {
            Next::Frame { flags, end } => {
                splitter.take(flags, pos + felix::HEADER_BYTES, end)?;
                pos = end;
            }
            Next::Wait => break 0,
            Next::Fatal(fatal) => break fatal,
        }
    };
    splitter.flush()?;
    Ok((splitter.items, pos, fatal))
}

#[pyfunction]
pub fn felix_batch<'py>(
    py: Python<'py>,
    payload: &Bound<'py, PyAny>,
    flags: u16,
    origin: &[u8],
    now: i64,
) -> PyResult<Bound<'py, PyTuple>> {
    let held = Held::new(payload)?;
    let d = held.bytes();
    let meant = flags & !(felix::PACKED | felix::KEYED);
    if meant != felix::BATCH && meant != felix::BATCH | felix::ACKED {
        return Err(refuse("not the flags of a batch: they are 0x0001 or 0x0009, with or without 0x0040 and 0x0100"));
    }
    if d.len() > felix::MAX_FRAME_CEILING_BYTES {
        return Err(refuse("payload is over 32 MiB"));
    }
    origin_fits(origin, now)?;
    let front = Front { acked: meant != felix::BATCH, keyed: flags & felix::KEYED != 0 };
    match Group::parse(d, 0, d.len(), front, &[]) {
        Ok(group) => batch_item(py, d, &group, origin),
        Err(fault) => malformed_item(py, &fault),
    }
}

/// The caches of the asker, and the last one that was asked for: gets mostly come in runs of one scope.
struct Scopes<'a, 'py> {
    given: &'a Bound<'py, PyDict>,
    last: Option<(Scope<'a>, PyRef<'py, CacheMemory>)>,
}

impl<'a, 'py> Scopes<'a, 'py> {
    fn find(&mut self, scope: Scope<'a>) -> PyResult<Option<&CacheMemory>> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != scope) {
            let name = scope.map_or_else(Vec::new, |names| names.join(&0));
            let found = self.given.get_item(PyBytes::new(self.given.py(), &name))?;
            let Some(found) = found else { return Ok(None) };
            self.last = Some((scope, found.cast_into::<CacheMemory>()?.try_borrow()?));
        }
        Ok(self.last.as_ref().map(|(_, memory)| &**memory))
    }
}

type Answers<'py> = (Bound<'py, PyBytes>, usize, usize, usize);

#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn felix_gets<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    start: i64,
    frame_bytes_max: i64,
    scopes: &Bound<'py, PyDict>,
    now: i64,
    bytes_max: i64,
    versions: bool,
) -> PyResult<Answers<'py>> {
    let held = Held::new(data)?;
    let d = held.bytes();
    let (mut pos, frame_bytes_max) = frame_bounds(start, frame_bytes_max, d.len())?;
    if bytes_max < 1 {
        return Err(refuse("bytes_max must be at least 1 byte"));
    }
    let mut scopes = Scopes { given: scopes, last: None };
    let (mut run, mut reply) = (felix_json::Run::default(), felix_json::Reply::new(d.len() - pos));
    let (mut hits, mut misses) = (0, 0);
    while (reply.frames.len() as i64) < bytes_max {
        let Next::Frame { flags: 0, end } = felix::next_frame(d, pos, frame_bytes_max) else { break };
        let Some(got) = run.parse(&d[pos + felix::HEADER_BYTES..end]) else { break };
        let Some(memory) = scopes.find(got.scope)? else { break };
        let live = memory.live(py, got.key, now);
        let hit = live.as_ref().map(|live| (live.value, if versions { Some(live.version) } else { None }));
        if !reply.add(&got, hit, frame_bytes_max) {
            break;
        }
        match live {
            Some(live) => {
                live.mark_used();
                hits += 1;
            }
            None => misses += 1,
        }
        pos = end;
    }
    Ok((PyBytes::new(py, &reply.frames), pos, hits, misses))
}

/// (frames, events in them, [(where in the frames it would stand, its row, the bytes of its frame)] of what is left out)
type Frames<'py> = (Bound<'py, PyBytes>, usize, felix::Omitted);

#[pyfunction]
#[pyo3(signature = (batch, first, last, now, offsets, high, frame_bytes_max, keys=false))]
#[allow(clippy::too_many_arguments)]
pub fn felix_deliver<'py>(
    py: Python<'py>,
    batch: &Bound<'py, PyAny>,
    first: i64,
    last: i64,
    now: i64,
    offsets: bool,
    high: u64,
    frame_bytes_max: i64,
    keys: bool,
) -> PyResult<Frames<'py>> {
    let held = Held::new(batch)?;
    let most = frame_max(frame_bytes_max)?;
    let delivery =
        felix::Delivery::new(held.bytes(), (first, last), now, (offsets, keys), high, most).map_err(refuse)?;
    let frames = unzeroed_bytes(py, delivery.bytes, |out| delivery.fill(out))?;
    Ok((frames, delivery.events, delivery.omitted))
}

#[pyfunction]
pub fn felix_events<'py>(
    py: Python<'py>,
    batch: &Bound<'py, PyAny>,
    first: i64,
    last: i64,
    now: i64,
    target_json: &[u8],
    frame_bytes_max: i64,
) -> PyResult<Frames<'py>> {
    let held = Held::new(batch)?;
    let most = frame_max(frame_bytes_max)?;
    let events = felix::Events::new(held.bytes(), (first, last), now, target_json, most).map_err(refuse)?;
    let frames = unzeroed_bytes(py, events.bytes, |out| events.fill(out))?;
    Ok((frames, events.events, events.omitted))
}

#[pyfunction]
#[pyo3(signature = (target, values, request_id, ack_mode, key=None, key_flag=felix::KEYED))]
pub fn felix_publish<'py>(
    py: Python<'py>,
    target: &[u8],
    values: &Bound<'py, PyAny>,
    request_id: i128,
    ack_mode: i64,
    key: Option<&[u8]>,
    key_flag: u16,
) -> PyResult<Bound<'py, PyBytes>> {
    let request = match request_id {
        -1 => None,
        _ => Some(
            u64::try_from(request_id)
                .map_err(|_| PyOverflowError::new_err("request_id must be -1 (none) or an unsigned 64-bit number"))?,
        ),
    };
    if !felix::ack_mode_fits(request.is_some(), ack_mode) {
        return Err(refuse("ack_mode must be 0 without a request_id, and 1 or 2 with one"));
    }
    if !felix::target_sound(target) {
        return Err(refuse("target must be three names of UTF-8, each behind its length of two bytes"));
    }
    key_flag_fits(key_flag)?;
    if key.is_some_and(|key| key.len() > MAX_U16) {
        return Err(refuse("key is over 65535 bytes"));
    }
    let values = list_of(values)?.iter().map(|one| Ok(one.cast_into::<PyBytes>()?)).collect::<PyResult<Vec<_>>>()?;
    if values.len() > MAX_GROUP_RECORDS {
        return Err(refuse("too many values: a batch holds at most 2**20"));
    }
    let size = values.iter().map(|value| 4 + value.as_bytes().len()).sum::<usize>();
    let request = request.map(|request_id| (request_id, ack_mode as u8));
    let key = key.map(|key| (key, key_flag));
    let front = felix::publish_front(target, request, key, values.len(), size)
        .ok_or_else(|| refuse("batch too large: a frame is over 32 MiB; send fewer values at once"))?;
    unzeroed_bytes(py, front.len() + size, |out| {
        out[..front.len()].copy_from_slice(&front);
        values.iter().fold(front.len(), |at, value| felix::put_value(out, at, value.as_bytes()));
    })
}

/// The item of a server's frame whose payload is d[at..end], or what is fatal about it.
fn received_item<'py>(
    py: Python<'py>,
    flags: u16,
    d: &[u8],
    at: usize,
    end: usize,
) -> PyResult<Result<Bound<'py, PyTuple>, u8>> {
    const PACKED: u16 = felix::EVENTS | felix::PACKED;
    const OFFSETS_PACKED: u16 = PACKED | felix::OFFSETS;
    const KEYED_PACKED: u16 = PACKED | felix::KEYED;
    const OFFSETS_KEYED_PACKED: u16 = OFFSETS_PACKED | felix::KEYED;
    const RECORDS: u16 = felix::EVENTS | felix::RECORDS;
    const RECORDS_PACKED: u16 = RECORDS | felix::PACKED;
    let payload = &d[at..end];
    match flags {
        0 => return Ok(Ok((JSON_ITEM, PyBytes::new(py, payload)).into_pyobject(py)?)),
        PACKED | OFFSETS_PACKED | KEYED_PACKED | OFFSETS_KEYED_PACKED | RECORDS | RECORDS_PACKED => {
            return Ok(Ok((felix::PACKED, flags, PyBytes::new(py, payload)).into_pyobject(py)?));
        }
        felix::ACK => {
            let Some((head, message)) = payload.split_at_checked(felix::ACK_BYTES) else {
                return Ok(Err(felix::BAD_PAYLOAD));
            };
            let size = u16::from_be_bytes([head[9], head[10]]) as usize;
            let Some(message) = std::str::from_utf8(message).ok().filter(|_| head[0] <= 1 && message.len() == size)
            else {
                return Ok(Err(felix::BAD_PAYLOAD));
            };
            return Ok(Ok((felix::ACK, head[0], u64_be(head, 1), message).into_pyobject(py)?));
        }
        _ => {}
    }
    let kind = flags & !(felix::OFFSETS | felix::KEYED);
    if kind != felix::EVENTS_OF && kind != felix::EVENTS {
        return Ok(Err(felix::BAD_FLAGS));
    }
    let (of, with_offset) = (kind == felix::EVENTS_OF, flags & felix::OFFSETS != 0);
    let wide = 8 * usize::from(of) + felix::OFFSET_BYTES * usize::from(with_offset);
    if end - at < wide {
        return Ok(Err(felix::BAD_PAYLOAD));
    }
    let subscription = or_none(py, of.then(|| u64_be(d, at)))?;
    let base = or_none(py, with_offset.then(|| u64_be(d, at + wide - felix::OFFSET_BYTES)))?;
    if flags & felix::KEYED != 0 {
        let Some(events) = felix::keyed_values(d, at + wide, end) else { return Ok(Err(felix::BAD_PAYLOAD)) };
        let values = PyList::new(py, events.iter().map(|(_, value)| PyBytes::new(py, value)).collect::<Vec<_>>())?;
        let keys = PyList::new(py, events.iter().map(|(key, _)| key.map(|key| PyBytes::new(py, key))))?;
        return Ok(Ok((felix::EVENTS, subscription, base, values, keys).into_pyobject(py)?));
    }
    let Ok(values) = Values::parse(d, at + wide, end) else { return Ok(Err(felix::BAD_PAYLOAD)) };
    let values = PyList::new(py, values.iter(d).map(|value| PyBytes::new(py, value)).collect::<Vec<_>>())?;
    Ok(Ok((felix::EVENTS, subscription, base, values).into_pyobject(py)?))
}

#[pyfunction]
pub fn felix_received<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    start: i64,
    frame_bytes_max: i64,
) -> PyResult<Split<'py>> {
    let held = Held::new(data)?;
    let d = held.bytes();
    let (mut pos, frame_bytes_max) = frame_bounds(start, frame_bytes_max, d.len())?;
    let items = PyList::empty(py);
    loop {
        let (flags, end) = match felix::next_frame(d, pos, frame_bytes_max) {
            Next::Frame { flags, end } => (flags, end),
            Next::Wait => return Ok((items, pos, 0)),
            Next::Fatal(fatal) => return Ok((items, pos, fatal)),
        };
        match received_item(py, flags, d, pos + felix::HEADER_BYTES, end)? {
            Ok(item) => items.append(item)?,
            Err(fatal) => return Ok((items, pos, fatal)),
        }
        pos = end;
    }
}

/// A scan of more bytes than this lets other threads run: it may take 7 ns a byte.
const UNLOCKED_SCAN_BYTES: usize = 64 << 10;

/// The caller promises that nobody writes to data meanwhile.
fn scanned<T: Send>(py: Python<'_>, data: &[u8], scan: impl Fn(&[u8]) -> T + Send + Sync) -> T {
    if data.len() < UNLOCKED_SCAN_BYTES { scan(data) } else { py.detach(|| scan(data)) }
}

fn depth(depth_max: i64) -> PyResult<usize> {
    if !(1..=felix_json::MAX_DEPTH).contains(&depth_max) {
        return Err(refuse("depth_max must be 1 to 10,000"));
    }
    Ok(depth_max as usize)
}

#[pyfunction]
pub fn json_fault(py: Python<'_>, data: &Bound<'_, PyAny>, depth_max: i64) -> PyResult<u8> {
    let (held, most) = (Held::new(data)?, depth(depth_max)?);
    Ok(scanned(py, held.bytes(), |d| felix_json::head(d, most)).0)
}

#[pyfunction]
pub fn json_head<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    depth_max: i64,
) -> PyResult<(u8, Bound<'py, PyBytes>)> {
    let (held, most) = (Held::new(data)?, depth(depth_max)?);
    let (fault, kind) = scanned(py, held.bytes(), |d| felix_json::head(d, most));
    Ok((fault, PyBytes::new(py, &kind)))
}

#[pyfunction]
pub fn json_shape(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<(usize, usize)> {
    let held = Held::new(data)?;
    Ok(scanned(py, held.bytes(), felix_json::shape))
}
