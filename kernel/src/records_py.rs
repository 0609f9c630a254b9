//! Record sets between Python and `records.rs`: the functions `records_*` of `_native.pyi`.
//!
//! Only the talking to Python lives here: arguments in, objects out, refusals as ValueError. No I/O, no clock, no state.

use crate::batch::{Batch, KNOWN_FLAGS, MAX_OFFSET};
use crate::blip::MAX_U16;
use crate::records::{self, DeliverWish, Split};
use crate::{Blob, Held, list_of, optional_bytes, refuse, unzeroed_array, unzeroed_bytes};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

#[pyfunction]
#[pyo3(signature = (data, partition, partitions, origin, now, flags=0))]
pub fn records_split<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    partition: i64,
    partitions: i64,
    origin: &[u8],
    now: i64,
    flags: i64,
) -> PyResult<Bound<'py, PyTuple>> {
    if !(1..=i64::from(i32::MAX)).contains(&partitions) || !(-1..partitions).contains(&partition) {
        return Err(refuse("partition must be -1 or one of 1 to 2**31 - 1 partitions"));
    }
    if origin.len() > MAX_U16 {
        return Err(refuse("origin is over 65535 bytes"));
    }
    if !(0..1 << 62).contains(&now) {
        return Err(refuse("now must be microseconds since 1970"));
    }
    if flags < 0 || flags > i64::from(KNOWN_FLAGS) {
        return Err(refuse("unknown batch flag; known are bits 0 to 2"));
    }
    let held = Held::new(data)?;
    let d = held.bytes();
    if d.len() > records::SET_BYTES_MAX {
        return Err(refuse("a record set has at most 32 MiB"));
    }
    let split = match Split::new(d, partition as i32, partitions as u32, now) {
        Ok(split) => split,
        Err(refused) => return refused.into_pyobject(py),
    };
    let groups = PyList::empty(py);
    for number in 0..split.group_count() {
        let plan = split.plan(number, origin, flags as u16).map_err(refuse)?;
        let batch = unzeroed_array(py, plan.0.length, |out| split.fill(number, &plan, origin, out))?;
        let (partition, count) = split.group(number);
        groups.append((partition, batch, count))?;
    }
    let order = unzeroed_bytes(py, 2 * split.record_count(), |out| split.fill_order(out))?;
    (groups, order).into_pyobject(py)
}

#[pyfunction]
#[pyo3(signature = (values, keys=None, headers=None, ttl_ms=0, head=&b""[..], tail=&b""[..], lengths=Vec::new()))]
#[expect(clippy::too_many_arguments, reason = "a frame in one call: its records, and what stands around them")]
pub fn records_pack<'py>(
    py: Python<'py>,
    values: &Bound<'py, PyAny>,
    keys: Option<&Bound<'py, PyAny>>,
    headers: Option<&Bound<'py, PyAny>>,
    ttl_ms: u32,
    head: &[u8],
    tail: &[u8],
    lengths: Vec<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
    let values = list_of(values)?.iter().map(|one| Ok(one.cast_into::<PyBytes>()?)).collect::<PyResult<Vec<_>>>()?;
    let keys = keys.map(optional_bytes).transpose()?;
    let headers = headers
        .map(|all| list_of(all)?.iter().map(|one| Ok(one.cast_into::<PyBytes>()?)).collect::<PyResult<Vec<_>>>())
        .transpose()?;
    if keys.as_ref().is_some_and(|all| all.len() != values.len())
        || headers.as_ref().is_some_and(|all| all.len() != values.len())
    {
        return Err(refuse("columns differ in length; give each record one entry in every column"));
    }
    let record = |i: usize| records::ToPublish {
        key: keys.as_ref().and_then(|keys| keys[i].as_ref()).map_or(&[][..], Blob::as_bytes),
        headers: headers.as_ref().map_or(&[][..], |all| all[i].as_bytes()),
        ttl_ms,
        value: values[i].as_bytes(),
    };
    let size: usize = (0..values.len()).map(|i| record(i).size()).sum();
    let mut front = head.to_vec();
    for at in lengths {
        let place = front.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<4>());
        let place = place.ok_or_else(|| refuse("lengths must be places of four bytes in the head"))?;
        let sum = u32::from_be_bytes(*place) as usize + size;
        let sum =
            u32::try_from(sum).map_err(|_| PyOverflowError::new_err("the set is longer than its length field says"))?;
        *place = sum.to_be_bytes();
    }
    unzeroed_bytes(py, front.len() + size + tail.len(), |out| {
        let (begin, mut out) = out.split_at_mut(front.len());
        begin.copy_from_slice(&front);
        for i in 0..values.len() {
            out = record(i).put(out);
        }
        out.copy_from_slice(tail);
    })
}

fn put_pair(out: &mut records::Packed, name: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
    let name = name.cast::<PyString>()?.to_str()?.as_bytes();
    if value.is_none() {
        out.put(name, None);
    } else if let Ok(text) = value.cast::<PyString>() {
        out.put(name, Some(text.to_str()?.as_bytes()));
    } else {
        out.put(name, Some(value.cast::<PyBytes>()?.as_bytes()));
    }
    Ok(())
}

#[pyfunction]
pub fn headers_pack<'py>(py: Python<'py>, given: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let mut out = records::Packed::new();
    if let Ok(mapping) = given.cast::<PyDict>() {
        for (name, value) in mapping.iter() {
            put_pair(&mut out, &name, &value)?;
        }
    } else {
        for pair in given.try_iter()? {
            let (name, value): (Bound<'py, PyAny>, Bound<'py, PyAny>) = pair?.extract()?;
            put_pair(&mut out, &name, &value)?;
        }
    }
    if !out.is_within_limits() {
        return Err(PyOverflowError::new_err("the headers are beyond a limit"));
    }
    Ok(PyBytes::new(py, out.bytes()))
}

#[pyfunction]
pub fn headers_unpack<'py>(py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyTuple>> {
    let found = records::unpacked(data).ok_or_else(|| refuse("the headers do not add up"))?;
    let pairs = found.iter().map(|(name, value)| {
        (String::from_utf8_lossy(name), value.map(|value| PyBytes::new(py, value))).into_pyobject(py)
    });
    PyTuple::new(py, pairs.collect::<PyResult<Vec<_>>>()?)
}

#[pyfunction]
pub fn records_deliver<'py>(
    py: Python<'py>,
    batch: &Bound<'py, PyAny>,
    first: i64,
    last: i64,
    now: i64,
    base: i64,
    bytes_max: i64,
) -> PyResult<(Bound<'py, PyBytes>, usize, usize)> {
    let held = Held::new(batch)?;
    let batch = Batch::open(held.bytes(), 0).map_err(refuse)?;
    if first < 0 || first > last || last > batch.head.count as i64 {
        return Err(refuse("first and last must lie in the batch, in this order"));
    }
    let end = (base as u64).checked_add(batch.head.base_offset + u64::from(batch.head.span));
    if base < 0 || end.is_none_or(|end| end > MAX_OFFSET) || bytes_max < 1 {
        return Err(refuse("numbers must stay below 2**63, and bytes_max must be at least 1"));
    }
    let (first, last, bytes_max) = (first as usize, last as usize, bytes_max as usize);
    let wish = DeliverWish { batch: &batch, first, last, now, base: base as u64, bytes_max };
    let (data, count, following) = records::deliver(&wish).map_err(refuse)?;
    Ok((PyBytes::new(py, &data), count, following))
}

#[pyfunction]
pub fn records_received<'py>(py: Python<'py>, data: &Bound<'py, PyAny>, qos: i64) -> PyResult<Bound<'py, PyList>> {
    let held = Held::new(data)?;
    let found = records::received(held.bytes()).ok_or_else(|| refuse("the record set does not add up"))?;
    let none = PyBytes::new(py, &[]);
    let qos = qos.into_pyobject(py)?;
    let mut origin: (&[u8], Bound<'py, PyBytes>) = (&[], PyBytes::new(py, &[]));
    let mut time = (0, 0i64.into_pyobject(py)?);
    let mut rows = Vec::with_capacity(found.len());
    for one in &found {
        if origin.0 != one.origin {
            origin = (one.origin, PyBytes::new(py, one.origin));
        }
        if time.0 != one.time {
            time = (one.time, one.time.into_pyobject(py)?);
        }
        let headers = if one.headers.is_empty() { none.clone() } else { PyBytes::new(py, one.headers) };
        let key = one.key.map(|key| PyBytes::new(py, key));
        let value = PyBytes::new(py, one.value);
        rows.push((one.number, &qos, value, key, headers, &time.1, &origin.1).into_pyobject(py)?);
    }
    PyList::new(py, rows)
}
