//! The topics that one connection has published to, by name, so that a door appends to them without asking Python.
//!
//! What rights the connection had is Python's to know: it clears the routes when rights change. No I/O, no clock.

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use std::collections::HashMap;

/// Where publishes to a name go.
pub struct Route {
    pub handle: u64,
    pub keeps: bool, // also those that must be kept, of which somebody waits to hear
    pub topic: Py<PyAny>,
}

/// Names, handles of `Tails.add_topic`, and what Python calls the topics.
#[pyclass(generic, module = "quintet.kernel._native")]
#[derive(Default)]
pub struct Routes {
    by_name: HashMap<Vec<u8>, Route>,
}

impl Routes {
    pub fn find(&self, name: &[u8]) -> Option<&Route> {
        self.by_name.get(name)
    }
}

#[pymethods]
impl Routes {
    /// A topic leads to its subscribers, and one of them may be the connection that has these routes.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.by_name.values().try_for_each(|route| visit.call(&route.topic))
    }

    fn __clear__(&mut self) {
        self.by_name.clear();
    }

    #[new]
    fn new() -> Routes {
        Routes::default()
    }

    fn add(&mut self, name: &[u8], handle: u64, topic: Py<PyAny>, keeps: bool) {
        self.by_name.insert(name.to_vec(), Route { handle, keeps, topic });
    }

    fn clear(&mut self) {
        self.by_name.clear();
    }
}
