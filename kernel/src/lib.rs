//! The native twin of the kernel: the functions of `_native.pyi`, which take Python buffers and give Python objects.
//!
//! Only the talking to Python lives here (in `fly_py.rs` for FlyMQ, `fast_py.rs` for Fast TCP, `arrow_py.rs` for Arrow, `chain_py.rs` for links,
//! `ws_py.rs` for WebSocket):
//! arguments in, objects out, refusals as ValueError. The work is in `batch.rs`, `make.rs`, `blip.rs`, `fast.rs`, `fly.rs`,
//! `fly_reply.rs`, `arrow.rs` and `scatter.rs`. The interpreter lock is held throughout, except while a large FlyMQ fetch is written and while Arrow
//! columns are made or taken; no I/O, no clock, no state.

mod arrow;
mod arrow_py;
mod batch;
mod blip;
mod chain_py;
mod fast;
mod fast_py;
mod fly;
mod fly_py;
mod fly_reply;
mod make;
mod scatter;
mod ws_py;

use batch::{Batch, Head, Layout, Refusal, Sizes};
use make::VarWriter;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList, PySequence, PyTuple};

fn refuse(why: Refusal) -> PyErr {
    PyValueError::new_err(why)
}

/// A buffer held for the length of a call: it cannot be resized or freed meanwhile.
struct Held(PyBuffer<u8>);

impl Held {
    fn new(object: &Bound<'_, PyAny>) -> PyResult<Held> {
        let buffer = PyBuffer::<u8>::get(object)?;
        if buffer.dimensions() != 1 || !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the kernel needs a contiguous buffer of unsigned bytes"));
        }
        Ok(Held(buffer))
    }

    fn bytes(&self) -> &[u8] {
        if self.0.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: the buffer is contiguous (checked in new), of len_bytes() bytes, and stays exported, so neither moved
        // nor freed, while self lives; no Python code writes to it while we read: the interpreter lock is held, or the
        // caller promised it (fly_fetch, gather, scatter).
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast::<u8>(), self.0.len_bytes()) }
    }
}

/// One of many batches: bytearrays and bytes are taken as they are, which is much cheaper than exporting a buffer.
enum Part<'py> {
    Array(Bound<'py, PyByteArray>),
    Bytes(Bound<'py, PyBytes>),
    Other(Held),
}

impl<'py> Part<'py> {
    fn new(object: Bound<'py, PyAny>) -> PyResult<Part<'py>> {
        match object.cast_into::<PyByteArray>() {
            Ok(array) => Ok(Part::Array(array)),
            Err(other) => match other.into_inner().cast_into::<PyBytes>() {
                Ok(bytes) => Ok(Part::Bytes(bytes)),
                Err(other) => Ok(Part::Other(Held::new(&other.into_inner())?)),
            },
        }
    }

    /// The bytes, to be used only while no Python code can run: a bytearray taken this way could be resized by it.
    fn bytes(&self) -> &[u8] {
        match self {
            // SAFETY: the callers, `merge` and `fly_produced`, ask after all parts are taken and then run no Python code
            // before the slices are gone, so nobody writes to or resizes the bytearray meanwhile.
            Part::Array(array) => unsafe { array.as_bytes() },
            Part::Bytes(bytes) => bytes.as_bytes(),
            Part::Other(held) => held.bytes(),
        }
    }
}

fn range(start: i64, stop: i64, length: usize) -> PyResult<(usize, usize)> {
    if start < 0 || start > stop || stop > length as i64 {
        return Err(refuse("start and stop must lie in the buffer, in this order"));
    }
    Ok((start as usize, stop as usize))
}

fn list_of<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    match object.cast::<PyList>() {
        Ok(list) => Ok(list.clone()),
        Err(_) => object.cast::<PySequence>()?.to_list(),
    }
}

fn optional_bytes<'py>(object: &Bound<'py, PyAny>) -> PyResult<OptionalBytes<'py>> {
    list_of(object)?
        .iter()
        .map(|one| if one.is_none() { Ok(None) } else { Ok(Some(one.cast_into::<PyBytes>()?)) })
        .collect()
}

#[pyfunction]
#[pyo3(signature = (data, value=0))]
fn crc32c(data: &Bound<'_, PyAny>, value: u32) -> PyResult<u32> {
    Ok(batch::crc32c(Held::new(data)?.bytes(), value))
}

// -- record batches ---------------------------------------------------------------------------------------------------

type HeaderPairs<'py> = Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>;
type OptionalBytes<'py> = Vec<Option<Bound<'py, PyBytes>>>;

fn header_lists<'py>(object: &Bound<'py, PyAny>) -> PyResult<Vec<HeaderPairs<'py>>> {
    list_of(object)?
        .iter()
        .map(|one| list_of(&one)?.iter().map(|pair| pair.extract()).collect::<PyResult<HeaderPairs<'py>>>())
        .collect()
}

/// The columns given to build. One that would say nothing is None.
struct Columns<'py> {
    values: OptionalBytes<'py>,
    keys: Option<OptionalBytes<'py>>,
    headers: Option<Vec<HeaderPairs<'py>>>,
    timestamps: Option<Vec<i64>>,
    expiries: Option<Vec<i64>>,
}

impl Columns<'_> {
    fn agree_in_length(&self) -> bool {
        let n = self.values.len();
        self.keys.as_ref().is_none_or(|all| all.len() == n)
            && self.headers.as_ref().is_none_or(|all| all.len() == n)
            && self.timestamps.as_ref().is_none_or(|all| all.len() == n)
            && self.expiries.as_ref().is_none_or(|all| all.len() == n)
    }

    fn drop_empty(&mut self) {
        self.keys.take_if(|all| all.iter().all(Option::is_none));
        self.headers.take_if(|all| all.iter().all(Vec::is_empty));
        self.expiries.take_if(|all| all.iter().all(|one| *one == 0));
    }

    /// Which columns there are, and the sizes of those of bytes.
    fn measure(&self) -> (u16, Sizes) {
        let sum = |all: &OptionalBytes| all.iter().flatten().map(|one| one.as_bytes().len() as u64).sum::<u64>();
        let when = |yes: bool, column: u16| if yes { column } else { 0 };
        let mut sizes = Sizes { values: sum(&self.values), ..Sizes::default() };
        let mut columns = when(self.values.iter().any(Option::is_none), batch::VALUE_NULLS)
            | when(self.headers.is_some(), batch::HEADERS)
            | when(self.timestamps.is_some(), batch::TIMESTAMPS)
            | when(self.expiries.is_some(), batch::EXPIRY);
        if let Some(keys) = &self.keys {
            sizes.keys = sum(keys);
            columns |= batch::KEYS | when(keys.iter().any(Option::is_none), batch::KEY_NULLS);
        }
        for (name, value) in self.headers.iter().flatten().flatten() {
            sizes.header_count += 1;
            sizes.names += name.as_bytes().len() as u64;
            sizes.hvalues += value.as_bytes().len() as u64;
        }
        (columns, sizes)
    }

    /// Fills all columns but the origins.
    fn fill(&self, d: &mut [u8], at: &Layout) {
        put_optional(d, &self.values, at.value_bitmap, at.value_offsets, at.value_data);
        if let Some(keys) = &self.keys {
            put_optional(d, keys, at.key_bitmap, at.key_offsets, at.key_data);
        }
        let mut names = VarWriter::new(at.name_offsets, at.name_data);
        let mut hvalues = VarWriter::new(at.hvalue_offsets, at.hvalue_data);
        let mut total = 0;
        for (i, list) in self.headers.iter().flatten().enumerate() {
            for (name, value) in list {
                names.push(d, name.as_bytes());
                hvalues.push(d, value.as_bytes());
            }
            total += list.len() as i32;
            make::put_i32(d, at.header_lists, i + 1, total);
        }
        for (i, one) in self.timestamps.iter().flatten().enumerate() {
            make::put_i64(d, at.timestamps, i, *one);
        }
        for (i, one) in self.expiries.iter().flatten().enumerate() {
            make::put_i64(d, at.expiries, i, *one);
        }
    }
}

#[pyfunction]
#[pyo3(signature = (values, keys=None, headers=None, timestamps=None, expiries=None, origin=None, flags=0),
       text_signature = "(values, keys=None, headers=None, timestamps=None, expiries=None, origin=b'', flags=0)")]
#[allow(clippy::too_many_arguments)]
fn build<'py>(
    py: Python<'py>,
    values: &Bound<'py, PyAny>,
    keys: Option<&Bound<'py, PyAny>>,
    headers: Option<&Bound<'py, PyAny>>,
    timestamps: Option<Vec<i64>>,
    expiries: Option<Vec<i64>>,
    origin: Option<&[u8]>,
    flags: i64,
) -> PyResult<Bound<'py, PyByteArray>> {
    let origin = origin.unwrap_or(&[]);
    let mut given = Columns {
        values: optional_bytes(values)?,
        keys: keys.map(optional_bytes).transpose()?,
        headers: headers.map(header_lists).transpose()?,
        timestamps,
        expiries,
    };
    if given.values.is_empty() {
        return Err(refuse("a batch holds at least one record"));
    }
    if flags < 0 || flags > i64::from(batch::KNOWN_FLAGS) {
        return Err(refuse("unknown batch flag; known are bits 0 to 2"));
    }
    if !given.agree_in_length() {
        return Err(refuse("columns differ in length; give each record one entry in every column"));
    }
    given.drop_empty();
    let (columns, mut sizes) = given.measure();
    sizes.origins = origin.len() as u64;
    let count = given.values.len();
    let span = u32::try_from(count).map_err(|_| refuse(batch::TOO_LARGE))?;
    let mut head = Head { flags: flags as u16, columns, count, span, origins: 1, ..Head::default() };
    let at = batch::plan(&mut head, &sizes).map_err(refuse)?;
    zeroed_array(py, head.length, |d| {
        make::begin(d, &head, &at, &[origin]);
        given.fill(d, &at);
    })
}

fn put_optional(d: &mut [u8], all: &[Option<Bound<'_, PyBytes>>], bitmap: usize, offsets: usize, data: usize) {
    let mut writer = VarWriter::new(offsets, data);
    for (i, one) in all.iter().enumerate() {
        if bitmap != 0 && one.is_some() {
            make::set_bit(d, bitmap, i);
        }
        writer.push(d, one.as_ref().map_or(&[], |bytes| bytes.as_bytes()));
    }
}

#[pyfunction]
fn merge<'py>(py: Python<'py>, batches: &Bound<'py, PyAny>, timestamp: i64) -> PyResult<Bound<'py, PyByteArray>> {
    let taken = list_of(batches)?.iter().map(Part::new).collect::<PyResult<Vec<_>>>()?;
    let parts: Vec<&[u8]> = taken.iter().map(Part::bytes).collect();
    let merge = make::Merge::new(&parts, timestamp).map_err(refuse)?;
    zeroed_array(py, merge.head.length, |d| merge.fill(d))
}

fn seal_in_place(
    batch: &Bound<'_, PyByteArray>,
    place_and_time: Option<(i64, i64)>,
    seed: Option<u32>,
) -> PyResult<()> {
    // SAFETY: the interpreter lock is held and no Python code runs before the slice is gone, so nobody else reads,
    // writes or resizes the bytearray meanwhile.
    let d = unsafe { batch.as_bytes_mut() };
    make::seal(d, place_and_time, seed).map_err(refuse)
}

#[pyfunction]
fn seal(batch: &Bound<'_, PyByteArray>, base_offset: i64, timestamp: i64, seed: u32) -> PyResult<()> {
    seal_in_place(batch, Some((base_offset, timestamp)), Some(seed))
}

#[pyfunction]
fn place(batch: &Bound<'_, PyByteArray>, base_offset: i64, timestamp: i64) -> PyResult<()> {
    seal_in_place(batch, Some((base_offset, timestamp)), None)
}

#[pyfunction]
fn reseal(batch: &Bound<'_, PyByteArray>, seed: u32) -> PyResult<()> {
    seal_in_place(batch, None, Some(seed))
}

#[pyfunction]
fn check(data: &Bound<'_, PyAny>, start: i64, seed: u32) -> PyResult<i64> {
    let held = Held::new(data)?;
    let d = held.bytes();
    let (start, stop) = range(start, d.len() as i64, d.len())?;
    Ok(batch::check(d, start, stop, seed, true))
}

#[pyfunction]
fn walk(
    data: &Bound<'_, PyAny>,
    start: i64,
    stop: i64,
    seed: u32,
    verify: bool,
) -> PyResult<(Vec<batch::Step>, usize, i64)> {
    let held = Held::new(data)?;
    let (start, stop) = range(start, stop, held.bytes().len())?;
    Ok(batch::walk(held.bytes(), start, stop, seed, verify))
}

#[pyfunction]
fn find(data: &Bound<'_, PyAny>, start: i64, stop: i64, seed: u32) -> PyResult<i64> {
    let held = Held::new(data)?;
    let (start, stop) = range(start, stop, held.bytes().len())?;
    Ok(batch::find(held.bytes(), start, stop, seed))
}

#[pyfunction]
#[pyo3(signature = (batch, start=0))]
fn layout<'py>(py: Python<'py>, batch: &Bound<'py, PyAny>, start: i64) -> PyResult<Bound<'py, PyTuple>> {
    let held = Held::new(batch)?;
    let start = usize::try_from(start).map_err(|_| refuse("start is outside the buffer"))?;
    let w = Batch::open(held.bytes(), start).map_err(refuse)?.at;
    PyTuple::new(
        py,
        [
            w.origin_offsets,
            w.origin_data,
            w.origin_index,
            w.value_bitmap,
            w.value_offsets,
            w.value_data,
            w.key_bitmap,
            w.key_offsets,
            w.key_data,
            w.header_lists,
            w.header_count,
            w.name_offsets,
            w.name_data,
            w.hvalue_offsets,
            w.hvalue_data,
            w.timestamps,
            w.expiries,
            w.deltas,
            w.end,
        ],
    )
}

#[pyfunction]
fn rows<'py>(py: Python<'py>, batch: &Bound<'py, PyAny>, first: i64, last: i64) -> PyResult<Bound<'py, PyList>> {
    let held = Held::new(batch)?;
    let batch = Batch::open(held.bytes(), 0).map_err(refuse)?;
    if first < 0 || first > last || last > batch.head.count as i64 {
        return Err(refuse("first and last must lie in the batch, in this order"));
    }
    // The dictionary is small: an unsound entry is refused even if no record of the range uses it.
    let origins = (0..batch.head.origins)
        .map(|i| batch.origin(i).map(|origin| PyBytes::new(py, origin)).map_err(refuse))
        .collect::<PyResult<Vec<_>>>()?;
    let out = PyList::empty(py);
    for i in first as usize..last as usize {
        out.append(row(py, &batch, &origins, i)?)?;
    }
    Ok(out)
}

fn row<'py>(
    py: Python<'py>,
    batch: &Batch<'_>,
    origins: &[Bound<'py, PyBytes>],
    i: usize,
) -> PyResult<Bound<'py, PyTuple>> {
    let (w, n) = (&batch.at, batch.head.count);
    let one = |bitmap: usize, offsets: usize, data: usize| -> PyResult<Option<Bound<'py, PyBytes>>> {
        let bytes = batch.entry(offsets, data, n, i).map_err(refuse)?;
        Ok((!batch.is_null(bitmap, i)).then(|| PyBytes::new(py, bytes)))
    };
    let value = one(w.value_bitmap, w.value_offsets, w.value_data)?;
    let key = if w.key_offsets == 0 { None } else { one(w.key_bitmap, w.key_offsets, w.key_data)? };
    let mut headers = Vec::new();
    if w.header_lists != 0 {
        for j in batch.header_range(i).map_err(refuse)? {
            let name = batch.entry(w.name_offsets, w.name_data, w.header_count, j).map_err(refuse)?;
            let value = batch.entry(w.hvalue_offsets, w.hvalue_data, w.header_count, j).map_err(refuse)?;
            headers.push((PyBytes::new(py, name), PyBytes::new(py, value)));
        }
    }
    let origin = origins.get(batch.origin_number(i)).ok_or_else(|| refuse("an origin number has no entry"))?;
    let offset = batch.head.base_offset + batch.delta(i);
    (offset, batch.timestamp(i), key, value, PyTuple::new(py, headers)?, batch.expiry(i), origin).into_pyobject(py)
}

#[pyfunction]
fn select<'py>(
    py: Python<'py>,
    batch: &Bound<'py, PyAny>,
    keep: Vec<i64>,
) -> PyResult<Option<Bound<'py, PyByteArray>>> {
    let held = Held::new(batch)?;
    let Some(select) = make::Select::new(held.bytes(), &keep).map_err(refuse)? else { return Ok(None) };
    PyByteArray::new_with(py, select.head.length, |d| select.fill(d).map_err(refuse)).map(Some)
}

// -- BlipMQ -----------------------------------------------------------------------------------------------------------

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

fn topic_fits(topic: &[u8]) -> PyResult<()> {
    if topic.len() > blip::MAX_U16 { Err(refuse("topic is over 65535 bytes")) } else { Ok(()) }
}

type Split<'py> = (Bound<'py, PyList>, usize, u8);

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
fn blip_split<'py>(
    py: Python<'py>,
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
    let version = version_of(version)?;
    if origin.len() > blip::MAX_U16 {
        return Err(refuse("origin is over 65535 bytes"));
    }
    if !(0..1 << 62).contains(&now) {
        return Err(refuse("now must be microseconds since 1970"));
    }
    let last_type = if version == 2 { blip::DELIVER } else { blip::POLL };
    let items = PyList::empty(py);
    loop {
        let (kind, end) = match blip::next_frame(d, pos, max_frame, last_type) {
            blip::Next::Frame { kind, end } => (kind, end),
            blip::Next::Wait => return Ok((items, pos, 0)),
            blip::Next::Fatal(fatal) => return Ok((items, pos, fatal)),
        };
        let payload = pos + blip::FRAME_BYTES;
        let cid = blip::u64_be(d, pos + 5);
        match kind {
            blip::PUBLISH => {
                let (window, stop, error) = blip::publishes(d, pos, version, max_frame);
                append_groups(py, &items, d, &window, origin, now)?;
                pos = stop;
                if error != 0 {
                    items.append((0, blip::u64_be(d, pos + 5), error))?;
                    pos += 4 + u32::from_be_bytes([d[pos], d[pos + 1], d[pos + 2], d[pos + 3]]) as usize;
                }
                continue;
            }
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

/// A bytearray that `fill` writes every byte of, with room behind it for a link: making it longer would copy it, and take an
/// eighth more memory. PyO3's own `new_with` writes zeros first: one sixth of the time of a publish.
fn unzeroed_array<'py>(
    py: Python<'py>,
    length: usize,
    fill: impl FnOnce(&mut [u8]),
) -> PyResult<Bound<'py, PyByteArray>> {
    // SAFETY: CPython allocates the bytes (or sets an error); nobody else has the object yet, and `fill` only writes.
    unsafe {
        let object = pyo3::ffi::PyByteArray_FromStringAndSize(std::ptr::null(), (length + batch::LINK_BYTES) as isize);
        let array = Bound::from_owned_ptr_or_err(py, object)?.cast_into_unchecked::<PyByteArray>();
        array.resize(length)?;
        fill(std::slice::from_raw_parts_mut(pyo3::ffi::PyByteArray_AsString(object).cast(), length));
        Ok(array)
    }
}

/// The same, zeros where `fill` writes nothing.
fn zeroed_array<'py>(
    py: Python<'py>,
    length: usize,
    fill: impl FnOnce(&mut [u8]),
) -> PyResult<Bound<'py, PyByteArray>> {
    unzeroed_array(py, length, |d| {
        d.fill(0);
        fill(d);
    })
}

/// The same for bytes.
fn unzeroed_bytes<'py>(py: Python<'py>, length: usize, fill: impl FnOnce(&mut [u8])) -> PyResult<Bound<'py, PyBytes>> {
    // SAFETY: as above; a bytes object may be written to until somebody else sees it.
    unsafe {
        let object = pyo3::ffi::PyBytes_FromStringAndSize(std::ptr::null(), length as isize);
        let bytes = Bound::from_owned_ptr_or_err(py, object)?.cast_into_unchecked::<PyBytes>();
        fill(std::slice::from_raw_parts_mut(pyo3::ffi::PyBytes_AsString(object).cast(), length));
        Ok(bytes)
    }
}

fn append_groups<'py>(
    py: Python<'py>,
    items: &Bound<'py, PyList>,
    d: &[u8],
    window: &blip::Window<'_>,
    origin: &[u8],
    now: i64,
) -> PyResult<()> {
    for group in &window.groups {
        let plan = window.plan(group, origin).map_err(refuse)?;
        let batch = unzeroed_array(py, plan.0.length, |out| window.fill(d, group, &plan, origin, now, out))?;
        let ids = unzeroed_bytes(py, 8 * group.frames, |out| window.fill_ids(d, group, out))?;
        items.append((blip::PUBLISH, group.qos, PyBytes::new(py, group.topic), batch, ids))?;
    }
    Ok(())
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn blip_deliver<'py>(
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
fn blip_publish<'py>(
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
fn blip_received<'py>(py: Python<'py>, data: &Bound<'py, PyAny>, start: i64, max_frame: i64) -> PyResult<Split<'py>> {
    let held = Held::new(data)?;
    let d = held.bytes();
    let (mut pos, max_frame) = frame_bounds(start, max_frame, d.len())?;
    let items = PyList::empty(py);
    let mut run: Option<(u8, &[u8], Bound<'py, PyList>)> = None;
    loop {
        let (kind, end) = match blip::next_frame(d, pos, max_frame, blip::DELIVER) {
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

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::arrow_py::{gather, scatter};
    #[pymodule_export]
    use super::chain_py::{chain, follow};
    #[pymodule_export]
    use super::fast_py::{fast_deliver, fast_publish, fast_received, fast_split};
    #[pymodule_export]
    use super::fly_py::{fly_fetch, fly_produce, fly_produced, fly_received, fly_split};
    #[pymodule_export]
    use super::ws_py::ws_split;
    #[pymodule_export]
    use super::{
        blip_deliver, blip_publish, blip_received, blip_split, build, check, crc32c, find, layout, merge, place,
        reseal, rows, seal, select, walk,
    };
}
