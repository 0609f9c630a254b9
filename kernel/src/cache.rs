//! The memory of one cache: keys with their values, when they expire, their versions, and whether they were used.
//!
//! A get touches two or three places of memory: the table, and behind it key and value, which stand together. `felix_gets` answers
//! from here without an object of Python. No clock: `now` is handed in. `pure_cache.py` is the same in Python, and the
//! specification. What is evicted, what is durable and who may read is not decided here.

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator, PyList};
use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const INLINE_BYTES_MAX: usize = 4 * 1024; // of a value that stands behind its key; a longer one stays Python's object
const SHARDS: usize = 64; // of a large cache: a table that grows moves one of so many parts of it, and no turn notices
const SPLIT_KEYS: usize = 4 * 1024;

/// A key, and behind it its value if that is short.
struct Place {
    data: Box<[u8]>,
    key_bytes: usize,
}

impl Place {
    fn new(key: &[u8], value: &[u8]) -> Place {
        Place { data: [key, value].concat().into_boxed_slice(), key_bytes: key.len() }
    }

    fn key(&self) -> &[u8] {
        &self.data[..self.key_bytes]
    }
}

impl Borrow<[u8]> for Place {
    fn borrow(&self) -> &[u8] {
        self.key()
    }
}

impl Hash for Place {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Place) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Place {}

struct Entry {
    long: Option<Py<PyBytes>>, // its value, unless that is behind the key
    expires: i64,              // microseconds since 1970; 0: never
    version: u64,
    used: AtomicBool, // not for threads: a get sets it in a table that it only reads
}

impl Entry {
    fn value<'a>(&'a self, py: Python<'a>, place: &'a Place) -> &'a [u8] {
        match &self.long {
            Some(value) => value.bind(py).as_bytes(),
            None => &place.data[place.key_bytes..],
        }
    }

    fn row(&self, py: Python<'_>, place: &Place) -> Row {
        let value = match &self.long {
            Some(value) => value.clone_ref(py),
            None => PyBytes::new(py, &place.data[place.key_bytes..]).unbind(),
        };
        (value, self.expires, self.used.load(Relaxed), self.version)
    }
}

/// (value, expires, used, version)
type Row = (Py<PyBytes>, i64, bool, u64);

#[pyclass(module = "quintet.kernel._native")]
pub struct CacheMemory {
    shards: Vec<HashMap<Place, Entry>>, // one, or SHARDS
    keys: usize,
}

/// Which of SHARDS: any spread will do, the tables have secrets of their own.
fn shard_of(key: &[u8]) -> usize {
    let mixed = key.iter().fold(0u32, |mixed, b| mixed.wrapping_mul(0x0100_0193) ^ u32::from(*b));
    (mixed ^ mixed >> 16) as usize % SHARDS
}

impl CacheMemory {
    fn shard(&self, key: &[u8]) -> &HashMap<Place, Entry> {
        if self.shards.len() == 1 { &self.shards[0] } else { &self.shards[shard_of(key)] }
    }

    fn shard_mut(&mut self, key: &[u8]) -> &mut HashMap<Place, Entry> {
        if self.shards.len() == 1 { &mut self.shards[0] } else { &mut self.shards[shard_of(key)] }
    }

    fn split(&mut self) {
        let all = std::mem::take(&mut self.shards[0]);
        self.shards.resize_with(SHARDS, HashMap::new);
        for (place, entry) in all {
            let at = shard_of(place.key());
            self.shards[at].insert(place, entry);
        }
    }

    /// A key that has not expired.
    pub fn live<'a>(&'a self, py: Python<'a>, key: &[u8], now: i64) -> Option<Live<'a>> {
        let (place, entry) = self.shard(key).get_key_value(key)?;
        if entry.expires > 0 && entry.expires <= now {
            return None;
        }
        Some(Live { value: entry.value(py, place), version: entry.version, used: &entry.used })
    }
}

pub struct Live<'a> {
    pub value: &'a [u8],
    pub version: u64,
    used: &'a AtomicBool,
}

impl Live<'_> {
    /// Somebody asked for it.
    pub fn mark_used(&self) {
        self.used.store(true, Relaxed);
    }
}

#[pymethods]
impl CacheMemory {
    #[new]
    fn new() -> CacheMemory {
        CacheMemory { shards: vec![HashMap::new()], keys: 0 }
    }

    fn __len__(&self) -> usize {
        self.keys
    }

    fn __contains__(&self, key: &[u8]) -> bool {
        self.shard(key).contains_key(key)
    }

    fn get(&self, py: Python<'_>, key: &[u8]) -> Option<Row> {
        let (place, entry) = self.shard(key).get_key_value(key)?;
        Some(entry.row(py, place))
    }

    fn __getitem__(&self, py: Python<'_>, key: &[u8]) -> PyResult<Row> {
        self.get(py, key).ok_or_else(|| missing(py, key))
    }

    fn __setitem__(&mut self, py: Python<'_>, key: &[u8], row: Row) {
        let (value, expires, used, version) = row;
        let bytes = value.as_bytes(py);
        let (place, long) = match bytes.len() <= INLINE_BYTES_MAX {
            true => (Place::new(key, bytes), None),
            false => (Place::new(key, b""), Some(value)),
        };
        let shard = self.shard_mut(key);
        let there = shard.remove(key).is_some(); // `insert` alone would keep the old place, and with it the old value
        shard.insert(place, Entry { long, expires, version, used: AtomicBool::new(used) });
        if !there {
            self.keys += 1;
            if self.keys == SPLIT_KEYS && self.shards.len() == 1 {
                self.split();
            }
        }
    }

    fn pop(&mut self, py: Python<'_>, key: &[u8]) -> PyResult<Row> {
        match self.shard_mut(key).remove_entry(key) {
            Some((place, entry)) => {
                self.keys -= 1;
                Ok(entry.row(py, &place))
            }
            None => Err(missing(py, key)),
        }
    }

    fn set_used(&self, py: Python<'_>, key: &[u8], used: bool) -> PyResult<bool> {
        match self.shard(key).get(key) {
            Some(entry) => Ok(entry.used.swap(used, Relaxed)),
            None => Err(missing(py, key)),
        }
    }

    fn clear(&mut self) {
        self.shards = vec![HashMap::new()];
        self.keys = 0;
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        let keys = PyList::empty(py);
        for place in self.shards.iter().flat_map(HashMap::keys) {
            keys.append(PyBytes::new(py, place.key()))?;
        }
        keys.try_iter()
    }

    fn items<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let items = PyList::empty(py);
        for (place, entry) in self.shards.iter().flatten() {
            items.append((PyBytes::new(py, place.key()), entry.row(py, place)))?;
        }
        Ok(items)
    }
}

fn missing(py: Python<'_>, key: &[u8]) -> PyErr {
    PyKeyError::new_err(PyBytes::new(py, key).unbind())
}
