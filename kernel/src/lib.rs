//! The native twin of the kernel: the functions of `_native.pyi`, which take Python buffers and give Python objects.
//!
//! Only the talking to Python lives here (in `blip_py.rs` for BlipMQ, `fly_py.rs` for FlyMQ, `fast_py.rs` for Fast TCP, `felix_py.rs` and `felix_append.rs` for Felix, `arrow_py.rs` for Arrow, `chain_py.rs` for links,
//! `ws_py.rs` for WebSocket, `peer_py.rs` for peerbus, `records_py.rs` for record sets, `tails.rs` and `lent.rs` for the newest part of partitions in memory and in files, `quic_py.rs` for QUIC, which has a socket and a thread,
//! `disk.rs` and `alone.rs` for writing files, `sockets.rs` and `direct.rs` for TCP sockets):
//! arguments in, objects out, refusals as ValueError. The work is in `batch.rs`, `make.rs`, `blip.rs`, `fast.rs`, `felix.rs`,
//! `felix_json.rs`, `fly.rs`, `fly_reply.rs`, `arrow.rs`, `records.rs` and `scatter.rs`. The interpreter lock is held throughout, except while a large FlyMQ fetch is written, while Arrow
//! columns are made or taken, and while `alone.rs` waits for the disk; no I/O and no clock outside of QUIC, `sockets.rs`, `disk.rs` and `alone.rs`; state only in these, `tails.rs` and `lent.rs`.

#[cfg(target_os = "linux")]
mod alone;
mod arrow;
mod arrow_py;
mod batch;
mod blip;
mod blip_py;
mod cache;
mod cells_py;
mod chain_py;
#[cfg(target_os = "linux")]
mod direct;
#[cfg(target_os = "linux")]
mod disk;
mod fast;
mod fast_py;
mod felix;
mod felix_append;
mod felix_json;
mod felix_py;
mod fly;
mod fly_append;
mod fly_py;
mod fly_reply;
mod held;
mod keeping;
mod lent;
mod loan;
mod make;
mod merging;
mod order;
mod peer_py;
#[cfg(unix)]
mod quic;
#[cfg(unix)]
mod quic_alpn;
#[cfg(unix)]
mod quic_conn;
#[cfg(unix)]
mod quic_core;
#[cfg(unix)]
mod quic_py;
#[cfg(unix)]
mod quic_shared;
#[cfg(unix)]
mod quic_tls;
mod records;
mod records_py;
mod routes;
mod scatter;
mod segment_py;
mod slabs;
#[cfg(target_os = "linux")]
mod sockets;
mod tail;
mod tails;
mod ws_py;

use batch::{Batch, Head, Layout, Refusal, Sizes};
use make::VarWriter;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList, PyMemoryView, PySequence, PySlice, PyTuple};

fn refuse(why: Refusal) -> PyErr {
    PyValueError::new_err(why)
}

/// Has a line of memory fetched that is used soon. Only a hint, which some processors are not given.
#[inline(always)]
fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing and fails nowhere, whatever the address is.
    unsafe {
        std::arch::x86_64::_mm_prefetch(at.cast(), std::arch::x86_64::_MM_HINT_T0);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
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
        // caller promised it (fly_fetch, gather, scatter, json_head ...).
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
    list_of(object)?.iter().map(|one| if one.is_none() { Ok(None) } else { Ok(Some(Blob::new(one)?)) }).collect()
}

/// Bytes, or a view of some: a value of 31 MiB is then not copied before it is built into its batch.
enum Blob<'py> {
    Whole(Bound<'py, PyBytes>),
    View(Held),
}

impl<'py> Blob<'py> {
    fn new(object: Bound<'py, PyAny>) -> PyResult<Self> {
        match object.cast_into::<PyBytes>() {
            Ok(whole) => Ok(Blob::Whole(whole)),
            Err(other) => Ok(Blob::View(Held::new(&other.into_inner())?)),
        }
    }

    fn as_bytes(&self) -> &[u8] {
        match self {
            Blob::Whole(whole) => whole.as_bytes(),
            Blob::View(view) => view.bytes(),
        }
    }
}

#[pyfunction]
#[pyo3(signature = (data, value=0))]
fn crc32c(data: &Bound<'_, PyAny>, value: u32) -> PyResult<u32> {
    Ok(batch::crc32c(Held::new(data)?.bytes(), value))
}

// -- record batches ---------------------------------------------------------------------------------------------------

type HeaderPairs<'py> = Vec<(Bound<'py, PyBytes>, Option<Bound<'py, PyBytes>>)>;
type OptionalBytes<'py> = Vec<Option<Blob<'py>>>;

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
            sizes.hvalues += value.as_ref().map_or(0, |value| value.as_bytes().len() as u64);
            columns |= when(value.is_none(), batch::HEADER_NULLS);
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
                hvalues.push(d, value.as_ref().map_or(&[], |value| value.as_bytes()));
                if at.hvalue_bitmap != 0 && value.is_some() {
                    make::set_bit(d, at.hvalue_bitmap, total);
                }
                total += 1;
            }
            make::put_i32(d, at.header_lists, i + 1, total as i32);
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
    let fill = |d: &mut [u8]| {
        make::begin(d, &head, &at, &[origin]);
        given.fill(d, &at);
    };
    if head.length < UNLOCKED_BUILD_BYTES {
        return zeroed_array(py, head.length, fill);
    }
    let unlocked = Unlocked(|d: &mut [u8]| {
        d.fill(0);
        fill(d);
    });
    unzeroed_array(py, head.length, |d| py.detach(|| unlocked.call(d)))
}

/// A batch of this size is built without the interpreter lock: copying 31 MiB takes up to 40 ms.
const UNLOCKED_BUILD_BYTES: usize = 1024 * 1024;

/// What fills a batch from objects of Python, while the lock is given up.
struct Unlocked<F: Fn(&mut [u8])>(F);

// SAFETY: `build` waits for it, so its objects live. It only reads the memory of bytes, which nobody can change, and of views,
// which stay exported and which the caller promises not to write to; no count of references is touched.
unsafe impl<F: Fn(&mut [u8])> Send for Unlocked<F> {}
unsafe impl<F: Fn(&mut [u8])> Sync for Unlocked<F> {}

impl<F: Fn(&mut [u8])> Unlocked<F> {
    fn call(&self, d: &mut [u8]) {
        (self.0)(d);
    }
}

fn put_optional(d: &mut [u8], all: &[Option<Blob<'_>>], bitmap: usize, offsets: usize, data: usize) {
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
            w.hvalue_bitmap,
            w.end,
        ],
    )
}

#[pyfunction]
#[pyo3(signature = (batch, first, last, view_above = 0))]
fn rows<'py>(
    py: Python<'py>,
    batch: &Bound<'py, PyAny>,
    first: i64,
    last: i64,
    view_above: usize,
) -> PyResult<Bound<'py, PyList>> {
    let held = Held::new(batch)?;
    let whole = PyMemoryView::from(batch)?;
    let view = (view_above > 0).then_some((&whole, view_above));
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
        out.append(row(py, &batch, &origins, i, view)?)?;
    }
    Ok(out)
}

fn row<'py>(
    py: Python<'py>,
    batch: &Batch<'_>,
    origins: &[Bound<'py, PyBytes>],
    i: usize,
    view: Option<(&Bound<'py, PyMemoryView>, usize)>,
) -> PyResult<Bound<'py, PyTuple>> {
    let (w, n) = (&batch.at, batch.head.count);
    let one = |bitmap: usize, offsets: usize, data: usize| -> PyResult<Option<Bound<'py, PyBytes>>> {
        let bytes = batch.entry(offsets, data, n, i).map_err(refuse)?;
        Ok((!batch.is_null(bitmap, i)).then(|| PyBytes::new(py, bytes)))
    };
    let bytes = batch.entry(w.value_offsets, w.value_data, n, i).map_err(refuse)?;
    let value: Option<Bound<'py, PyAny>> = match view {
        _ if batch.is_null(w.value_bitmap, i) => None,
        Some((whole, above)) if bytes.len() > above => {
            let start = bytes.as_ptr() as isize - batch.d.as_ptr() as isize;
            Some(whole.get_item(PySlice::new(py, start, start + bytes.len() as isize, 1))?)
        }
        _ => Some(PyBytes::new(py, bytes).into_any()),
    };
    let key = if w.key_offsets == 0 { None } else { one(w.key_bitmap, w.key_offsets, w.key_data)? };
    let mut headers = Vec::new();
    if w.header_lists != 0 {
        for j in batch.header_range(i).map_err(refuse)? {
            let name = batch.entry(w.name_offsets, w.name_data, w.header_count, j).map_err(refuse)?;
            let value = batch.entry(w.hvalue_offsets, w.hvalue_data, w.header_count, j).map_err(refuse)?;
            let there = !batch.is_null(w.hvalue_bitmap, j);
            headers.push((PyBytes::new(py, name), there.then(|| PyBytes::new(py, value))));
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

fn topic_fits(topic: &[u8]) -> PyResult<()> {
    if topic.len() > blip::MAX_U16 { Err(refuse("topic is over 65535 bytes")) } else { Ok(()) }
}

type Split<'py> = (Bound<'py, PyList>, usize, u8);

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

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::arrow_py::{gather, scatter};
    #[pymodule_export]
    use super::blip_py::{blip_append, blip_deliver, blip_publish, blip_received, blip_split};
    #[pymodule_export]
    use super::cache::CacheMemory;
    #[pymodule_export]
    use super::cells_py::cell_run;
    #[pymodule_export]
    use super::chain_py::{chain, follow};
    #[cfg(target_os = "linux")]
    #[pymodule_export]
    use super::direct::DirectReader;
    #[cfg(target_os = "linux")]
    #[pymodule_export]
    use super::disk::DiskThreads;
    #[pymodule_export]
    use super::fast_py::{fast_append, fast_deliver, fast_publish, fast_received, fast_split};
    #[pymodule_export]
    use super::felix_append::felix_append;
    #[pymodule_export]
    use super::felix_py::{
        felix_batch, felix_deliver, felix_events, felix_gets, felix_publish, felix_received, felix_split, json_fault,
        json_head, json_shape,
    };
    #[pymodule_export]
    use super::fly_append::{FlyAppended, fly_append};
    #[pymodule_export]
    use super::fly_py::{fly_fetch, fly_produce, fly_produced, fly_received, fly_split, fly_split_one, fnv1a};
    #[pymodule_export]
    use super::peer_py::{peer_deliver, peer_frame, peer_object, peer_split};
    #[cfg(unix)]
    #[pymodule_export]
    use super::quic_py::QuicEndpoint;
    #[pymodule_export]
    use super::records_py::{
        headers_pack, headers_unpack, records_deliver, records_pack, records_received, records_split,
    };
    #[pymodule_export]
    use super::routes::Routes;
    #[pymodule_export]
    use super::segment_py::segment_head;
    #[cfg(target_os = "linux")]
    #[pymodule_export]
    use super::sockets::Sockets;
    #[pymodule_export]
    use super::tails::Tails;
    #[pymodule_export]
    use super::ws_py::{ws_frame, ws_split};
    #[pymodule_export]
    use super::{build, check, crc32c, find, layout, merge, place, reseal, rows, seal, select, walk};
}
