//! The topics that one connection has published to, by name, so that a door appends to them without asking Python.
//!
//! What rights the connection had is Python's to know: it clears the routes when rights change. No I/O, no clock.
//!
//! With ten thousand topics in turn, nearly all of what a message costs is waiting for memory. So a route is one line of the
//! processor's cache, its name in it, the table in front of it is eight bytes a name, and who knows the names ahead can have both fetched:
//!
//!     name --hash--> index (tag of 32 bits, number + 1) --> routes[number]

use crate::blip::be;
use crate::prefetch;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const SHORT_BYTES: usize = 30;
const GROUP_BITS: u32 = 24; // of the groups of a window: a frame of 32 MiB has at most two million
const INDEX_MIN: usize = 16;
const ROUTES_MAX: usize = 20_000; // of one connection, 2 MiB: whoever names more has them learnt anew
const FEW: usize = 512; // 40 KiB of routes and index: they are in the cache already

/// Most names are in the route itself.
enum Name {
    Short(u8, [u8; SHORT_BYTES]),
    Long(Box<[u8]>),
}

impl Name {
    fn new(name: &[u8]) -> Name {
        if name.len() > SHORT_BYTES {
            return Name::Long(name.into());
        }
        let mut short = [0; SHORT_BYTES];
        short[..name.len()].copy_from_slice(name);
        Name::Short(name.len() as u8, short)
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Name::Short(size, short) => &short[..usize::from(*size)],
            Name::Long(name) => name,
        }
    }
}

/// Where publishes to a name go.
#[repr(align(64))]
pub struct Route {
    pub handle: u64,
    pub topic: Py<PyAny>,
    seen: AtomicU64, // the last window (`Routes::window`) with publishes to it, and their group there
    pub keeps: bool, // also those that must be kept, of which somebody waits to hear
    name: Name,
}

impl Route {
    /// The number of its group in this window.
    pub fn group(&self, window: u64) -> Option<usize> {
        let seen = self.seen.load(Relaxed);
        (seen >> GROUP_BITS == window).then_some((seen & ((1 << GROUP_BITS) - 1)) as usize)
    }

    pub fn set_group(&self, window: u64, number: usize) {
        self.seen.store(window << GROUP_BITS | number as u64, Relaxed);
    }
}

/// Names, handles of `Tails.add_topic`, and what Python calls the topics.
#[pyclass(generic, module = "quintet.kernel._native")]
pub struct Routes {
    index: Vec<u64>, // at most half full, a power of two
    routes: Vec<Route>,
    seed: u64,
    windows: AtomicU64,
}

impl Routes {
    /// Names that collide cannot be made without the seed, and whoever made some would only slow the own connection down.
    #[inline]
    pub fn hash(&self, name: &[u8]) -> u64 {
        const MIX: u64 = 0x9E37_79B9_7F4A_7C15;
        let fold = |a: u64, b: u64| {
            let wide = u128::from(a) * u128::from(b);
            wide as u64 ^ (wide >> 64) as u64
        };
        let size = name.len();
        let mut mixed = self.seed ^ size as u64;
        for at in (0..size / 8 * 8).step_by(8) {
            mixed = fold(mixed ^ u64::from_le_bytes(be(name, at)), MIX);
        }
        let rest = if size >= 8 {
            u64::from_le_bytes(be(name, size - 8)) // the rest, and some of what was before it
        } else {
            name.iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
        };
        fold(mixed ^ rest, self.seed | 1)
    }

    pub fn find(&self, name: &[u8]) -> Option<&Route> {
        self.find_hashed(name, self.hash(name))
    }

    #[inline]
    pub fn find_hashed(&self, name: &[u8], hash: u64) -> Option<&Route> {
        self.number(name, hash).map(|number| &self.routes[number])
    }

    fn number(&self, name: &[u8], hash: u64) -> Option<usize> {
        let mut at = hash as usize;
        loop {
            let entry = *self.index.get(at & (self.index.len().wrapping_sub(1)))?; // None: there is no table yet
            if entry == 0 {
                return None;
            }
            let number = (entry as u32 - 1) as usize;
            if (entry ^ hash) >> 32 == 0 && self.routes[number].name.bytes() == name {
                return Some(number);
            }
            at = at.wrapping_add(1);
        }
    }

    /// So few that to look ahead costs more than it saves.
    pub fn are_few(&self) -> bool {
        self.routes.len() <= FEW
    }

    /// The hash of a name that is looked for soon: what is read first is fetched.
    pub fn announce(&self, name: &[u8]) -> u64 {
        let hash = self.hash(name);
        if let Some(entry) = self.index.get(hash as usize & (self.index.len().wrapping_sub(1))) {
            prefetch(entry);
        }
        hash
    }

    /// The route of a name that was announced some time ago is fetched, if it is where it is most likely.
    pub fn fetch(&self, hash: u64) {
        if let Some(entry) = self.index.get(hash as usize & (self.index.len().wrapping_sub(1)))
            && let Some(route) = self.routes.get((*entry as u32).wrapping_sub(1) as usize)
        {
            prefetch(route);
        }
    }

    /// The number of a new window: what is between two frames that Python acts on.
    pub fn window(&self) -> u64 {
        self.windows.fetch_add(1, Relaxed) + 1
    }

    fn index_anew(&mut self) {
        self.index = vec![0; (4 * self.routes.len()).next_power_of_two().max(INDEX_MIN)];
        for number in 0..self.routes.len() {
            self.put(self.hash(self.routes[number].name.bytes()), number);
        }
    }

    fn put(&mut self, hash: u64, number: usize) {
        let mask = self.index.len() - 1;
        let mut at = hash as usize & mask;
        while self.index[at] != 0 {
            at = (at + 1) & mask;
        }
        self.index[at] = hash >> 32 << 32 | (number as u64 + 1);
    }
}

#[pymethods]
impl Routes {
    /// A topic leads to its subscribers, and one of them may be the connection that has these routes.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.routes.iter().try_for_each(|route| visit.call(&route.topic))
    }

    fn __clear__(&mut self) {
        self.clear();
    }

    #[new]
    fn new() -> Routes {
        let seed = RandomState::new().hash_one(0u8);
        Routes { index: Vec::new(), routes: Vec::new(), seed, windows: AtomicU64::new(0) }
    }

    fn add(&mut self, name: &[u8], handle: u64, topic: Py<PyAny>, keeps: bool) {
        let (hash, number) = (self.hash(name), self.routes.len());
        let route = Route { handle, topic, seen: AtomicU64::new(0), keeps, name: Name::new(name) };
        match self.number(name, hash) {
            Some(number) => self.routes[number] = route,
            None if number >= ROUTES_MAX => {
                self.clear();
                self.add(name, handle, route.topic, keeps);
            }
            None => {
                self.routes.push(route);
                if 2 * self.routes.len() > self.index.len() {
                    self.index_anew();
                } else {
                    self.put(hash, number);
                }
            }
        }
    }

    fn clear(&mut self) {
        self.index.clear();
        self.routes.clear();
    }
}
