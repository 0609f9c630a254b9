//! Appends PRODUCE frames and record sets of FlyMQ in the call that splits a read, and writes their replies (ADR 29).
//!
//! A record that needs no decision makes no Python object: its batch is the only one that its group makes, and the replies of a run
//! are written into one buffer. Names and partitions come from `Routes` and `Tails`; `counts` is asked only for what they do not
//! know. What Python has to decide comes out as `fly_split` gives it. `pure_append.py` is the same in Python, and the specification.

use crate::batch::{self, Head, Layout, Refusal};
use crate::fly::{self, Produces, RecordSet, Stop};
use crate::fly_py::{self, Rest, frame_bounds, origin_fits, partitions_of};
use crate::fly_reply;
use crate::held::Holding;
use crate::records;
use crate::routes::{Route, Routes};
use crate::tail::bytes_of;
use crate::tails::Tails;
use crate::{Held, refuse, unzeroed_array, unzeroed_bytes};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyList};

/// Record sets that one call appends: behind so much, the session looks at the time.
const SETS_BYTES_MAX: usize = 1024 * 1024;

/// A run of PRODUCE frames, or one record set: groups that become a batch each.
pub enum Found<'a> {
    Run(Produces<'a>),
    Set(RecordSet<'a>, records::Split<'a>),
}

impl<'a> Found<'a> {
    /// The record set of a frame; None: it is refused, and Python says why.
    pub fn set(set: RecordSet<'a>, partitions: u32, now: i64) -> Option<Found<'a>> {
        let split = records::Split::new(set.set, set.partition, partitions, now).ok()?;
        (set.producer_id == 0 || split.group_count() == 1).then_some(Found::Set(set, split))
    }

    pub fn op(&self) -> u8 {
        match self {
            Found::Run(_) => fly::PRODUCE,
            Found::Set(..) => fly::PRODUCE_RECORDS,
        }
    }

    pub fn group_count(&self) -> usize {
        match self {
            Found::Run(run) => run.groups.len(),
            Found::Set(_, split) => split.group_count(),
        }
    }

    /// Topic, partition and records of a group.
    pub fn group(&self, number: usize) -> (&'a [u8], i32, usize) {
        match self {
            Found::Run(run) => {
                let group = &run.groups[number];
                (group.topic, group.partition, group.records)
            }
            Found::Set(set, split) => {
                let (partition, count) = split.group(number);
                (set.topic, partition, count)
            }
        }
    }

    /// Where a group goes, if it is to be kept and of no idempotent producer.
    fn route<'r>(&self, number: usize, routes: &[Option<&'r Route>]) -> Option<&'r Route> {
        let (topic_number, producer_id) = match self {
            Found::Run(run) => (run.groups[number].topic_number as usize, run.groups[number].producer_id),
            Found::Set(set, _) => (0, set.producer_id),
        };
        routes[topic_number].filter(|route| route.keeps && producer_id == 0)
    }

    fn plan(&self, number: usize, origin: &[u8]) -> Result<(Head, Layout), Refusal> {
        match self {
            Found::Run(run) => run.plan(&run.groups[number], origin),
            Found::Set(set, split) => {
                let mut plan = split.plan(number, origin, 0)?;
                if set.producer_id != 0 {
                    (plan.0.producer_id, plan.0.sequence) = (set.producer_id, set.sequence);
                }
                Ok(plan)
            }
        }
    }

    pub fn batch<'py>(
        &self,
        py: Python<'py>,
        d: &[u8],
        number: usize,
        origin: &[u8],
    ) -> PyResult<Bound<'py, PyByteArray>> {
        let plan = self.plan(number, origin).map_err(refuse)?;
        unzeroed_array(py, plan.0.length, |out| self.fill(d, number, &plan, origin, out))
    }

    /// Fills every byte of the batch of a group.
    fn fill(&self, d: &[u8], number: usize, plan: &(Head, Layout), origin: &[u8], out: &mut [u8]) {
        match self {
            Found::Run(run) => run.fill(d, &run.groups[number], plan, origin, out),
            Found::Set(_, split) => split.fill(number, plan, origin, out),
        }
    }

    pub fn order<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        match self {
            Found::Run(run) => unzeroed_bytes(py, 2 * run.records, |out| run.fill_order(out)),
            Found::Set(_, split) => unzeroed_bytes(py, 2 * split.record_count(), |out| split.fill_order(out)),
        }
    }

    /// The replies, if all of it was appended: `places` has partition, offset and time of each group.
    fn replies<'py>(
        &self,
        py: Python<'py>,
        mut places: Vec<(i32, u64, i64)>,
        order: &[u8],
        flags: u8,
        before: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        match self {
            Found::Run(run) => unzeroed_bytes(py, run.replies_bytes(), |out| run.fill_replies(&mut places, flags, out)),
            Found::Set(_, split) => {
                let mut out = before.to_vec();
                let groups = places.iter().enumerate();
                let groups: Vec<_> = groups
                    .map(|(number, (partition, base, time))| (*partition, *base, split.group(number).1, *time))
                    .collect();
                fly_reply::put_set_answer(&mut out, &groups, order, flags);
                Ok(PyBytes::new(py, &out))
            }
        }
    }
}

/// What Python is told of a run that was appended to partitions in files: its answers, if all of it was, and its groups for the case
/// that one of them comes back.
#[pyclass(frozen, module = "quintet.kernel._native")]
pub struct FlyAppended {
    /// The replies to all of it, or None: some groups are Python's to publish.
    #[pyo3(get)]
    answers: Option<Py<PyBytes>>,
    /// The group of each record, packed `<H`.
    #[pyo3(get)]
    order: Py<PyBytes>,
    names: Vec<u8>,
    groups: Vec<(usize, i32, Py<PyByteArray>)>, // where its name ends
}

impl FlyAppended {
    /// The replies to all of it; nothing if some groups are Python's.
    pub fn made<'a>(&'a self, py: Python<'a>) -> &'a [u8] {
        self.answers.as_ref().map_or(&[], |answers| answers.as_bytes(py))
    }
}

#[pymethods]
impl FlyAppended {
    /// As `fly_produced` takes them.
    fn groups<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let (found, nothing, mut begin) = (PyList::empty(py), PyBytes::new(py, &[]), 0);
        for (end, partition, batch) in &self.groups {
            let name = PyBytes::new(py, &self.names[begin..*end]);
            found.append((name, partition, batch, &nothing))?;
            begin = *end;
        }
        Ok(found)
    }
}

/// (answers or FlyHeld, items, consumed, fatal, unknown, the topic appended to last).
pub type Appended<'py> =
    (Bound<'py, PyAny>, Bound<'py, PyList>, usize, u8, Option<Bound<'py, PyBytes>>, Option<Py<PyAny>>);
/// items.FlyHeld: ticket, run, (number, records) of those that are left, ways, operation.
type HeldRun = (u64, FlyAppended, Vec<(usize, usize)>, u8, u8);

/// What became of the first run, or set, of a read.
enum Outcome<'py> {
    Left,
    Later,
    Answered(Bound<'py, PyBytes>, Py<PyAny>),
    Held(HeldRun, Option<Py<PyAny>>),
}

/// Partitions and route of a topic: those of the tails, if they have it, else what `counts` says.
fn known<'r>(
    tails: &Tails,
    routes: &'r Routes,
    counts: &Bound<'_, PyDict>,
    topic: &[u8],
) -> PyResult<Option<(u32, Option<&'r Route>)>> {
    let route = routes.find(topic);
    match route.and_then(|route| tails.partition_count(route.handle)) {
        Some(partitions) => Ok(Some((partitions, route))),
        None => Ok(partitions_of(counts, topic)?.map(|partitions| (partitions, route))),
    }
}

/// What is found, why collecting ended, where, and the routes of its topics.
type Next<'d, 'r> = (Option<Found<'d>>, Stop<'d>, usize, Vec<Option<&'r Route>>);

/// One call: what it reads, and where that goes.
struct Call<'d, 'r> {
    d: &'d [u8],
    routes: &'r Routes,
    origin: &'d [u8],
    now: i64,
    flags: u8,
}

impl<'d, 'r> Call<'d, 'r> {
    /// The run of PRODUCE frames from `at` on, or else the record set that is there.
    fn next(
        &self,
        tails: &Tails,
        counts: &Bound<'_, PyDict>,
        at: usize,
        max_frame: usize,
        sets: bool,
    ) -> PyResult<Next<'d, 'r>> {
        let mut topics = Vec::new();
        let (run, end, stop) = fly::produces(self.d, at, max_frame, |topic| {
            let found = known(tails, self.routes, counts, topic)?;
            Ok::<_, PyErr>(found.map(|(partitions, route)| {
                topics.push(route);
                partitions
            }))
        })?;
        if run.records != 0 {
            return Ok((Some(Found::Run(run)), stop, end, topics));
        }
        if let (Stop::Other, true) = (&stop, sets)
            && let Some((set, after)) = fly_py::set_at(self.d, end, max_frame)
            && let Some((partitions, route)) = known(tails, self.routes, counts, set.topic)?
            && fly_py::set_fits(&set, partitions)
            && let Some(found) = Found::set(set, partitions, self.now)
        {
            return Ok((Some(found), stop, after, vec![route]));
        }
        Ok((None, stop, end, topics))
    }

    fn append<'py>(
        &self,
        py: Python<'py>,
        tails: &mut Tails,
        found: &Found<'_>,
        routes: &[Option<&'r Route>],
        first: bool,
        before: &[u8],
    ) -> PyResult<Outcome<'py>> {
        if self.any_lent(tails, found, routes)? {
            if !first {
                return Ok(Outcome::Later);
            }
            let (held, route) = self.append_lent(py, tails, found, routes)?;
            return Ok(Outcome::Held(held, route.map(|route| route.topic.clone_ref(py))));
        }
        let appended = self.append_run(py, tails, found, routes, before)?;
        Ok(appended.map_or(Outcome::Left, |(made, route)| Outcome::Answered(made, route.topic.clone_ref(py))))
    }

    /// Does a group go to a partition in files, without a decision? Then all that need none are appended.
    fn any_lent(&self, tails: &Tails, found: &Found<'_>, routes: &[Option<&Route>]) -> PyResult<bool> {
        for number in 0..found.group_count() {
            let partition = found.group(number).1;
            let is_lent = |route: &&Route| !tails.takes(route.handle, partition);
            let Some(route) = found.route(number, routes).filter(is_lent) else { continue };
            let length = found.plan(number, self.origin).map_err(refuse)?.0.length;
            if tails.takes_lent(route.handle, partition, length) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Append what goes to partitions in files, or to memory, and needs no decision. The topic of the last in files.
    fn append_lent<'py>(
        &self,
        py: Python<'py>,
        tails: &mut Tails,
        found: &Found<'_>,
        routes: &[Option<&'r Route>],
    ) -> PyResult<(HeldRun, Option<&'r Route>)> {
        let mut placed = Vec::with_capacity(found.group_count());
        let (mut holding, mut rest, mut last) = (Holding::default(), Vec::new(), None);
        for number in 0..found.group_count() {
            let (_, partition, count) = found.group(number);
            let batch = found.batch(py, self.d, number, self.origin)?;
            let (length, given, mut chosen) = (batch.len(), batch.unbind(), None);
            if let Some(route) = found.route(number, routes) {
                let handle = route.handle;
                if tails.takes_lent(handle, partition, length) {
                    chosen =
                        Some(holding.append(py, tails, handle, partition, count as u64, &given, self.now, number)?);
                    last = Some(route);
                } else if tails.takes(handle, partition) {
                    chosen = Some(tails.publish_at(py, handle, partition, count as u64, &given, self.now)?);
                }
            }
            if chosen.is_none() {
                rest.push((number, count));
            }
            placed.push((chosen.unwrap_or(partition), given));
        }
        let order = found.order(py)?;
        let answers = match rest.is_empty() {
            true => {
                let place = |(partition, batch): &(i32, Py<PyByteArray>)| {
                    let d = bytes_of(py, batch);
                    (*partition, batch::i64_at(d, 16) as u64, batch::i64_at(d, 32))
                };
                let places = placed.iter().map(place).collect();
                Some(found.replies(py, places, order.as_bytes(), self.flags, &[])?.unbind())
            }
            false => None,
        };
        let (mut names, mut groups) = (Vec::new(), Vec::with_capacity(placed.len()));
        for (number, (partition, batch)) in placed.into_iter().enumerate() {
            names.extend(found.group(number).0);
            groups.push((names.len(), partition, batch));
        }
        let run = FlyAppended { answers, order: order.unbind(), names, groups };
        Ok(((holding.ticket, run, rest, holding.ways, found.op()), last))
    }

    /// Append a run that goes to memory, all of it: its answers, those of a set behind `before`. None: Python looks at it.
    fn append_run<'py>(
        &self,
        py: Python<'py>,
        tails: &mut Tails,
        found: &Found<'_>,
        routes: &[Option<&'r Route>],
        before: &[u8],
    ) -> PyResult<Option<(Bound<'py, PyBytes>, &'r Route)>> {
        let mut known = Vec::with_capacity(found.group_count());
        for number in 0..found.group_count() {
            let route = found.route(number, routes);
            let Some(route) = route.filter(|route| tails.takes(route.handle, found.group(number).1)) else {
                return Ok(None);
            };
            known.push(route);
        }
        let Some(last) = known.last().copied() else { return Ok(None) };
        let mut places = Vec::with_capacity(known.len());
        for (number, route) in known.into_iter().enumerate() {
            let (_, partition, count) = found.group(number);
            let plan = found.plan(number, self.origin).map_err(refuse)?;
            let fill = |out: &mut [u8]| found.fill(self.d, number, &plan, self.origin, out);
            let length = plan.0.length;
            places.push(tails.publish_told(py, route.handle, partition, count as u64, self.now, length, fill)?);
        }
        let order = match found {
            Found::Run(_) => None, // its replies follow the frames
            Found::Set(..) => Some(found.order(py)?),
        };
        let order = order.as_ref().map_or(&[][..], |order| order.as_bytes());
        Ok(Some((found.replies(py, places, order, self.flags, before)?, last)))
    }
}

#[pyfunction]
#[pyo3(signature = (tails, routes, data, start, max_frame, counts, origin, now, flags, append_sets=true))]
#[allow(clippy::too_many_arguments)]
pub fn fly_append<'py>(
    py: Python<'py>,
    tails: &Bound<'py, Tails>,
    routes: &Bound<'py, Routes>,
    data: &Bound<'py, PyAny>,
    start: i64,
    max_frame: i64,
    counts: &Bound<'py, PyDict>,
    origin: &[u8],
    now: i64,
    flags: u8,
    append_sets: bool,
) -> PyResult<Appended<'py>> {
    let held = Held::new(data)?;
    let d = held.bytes();
    let (start, max_frame) = frame_bounds(start, max_frame, d.len(), fly::MAX_FRAME_CEILING_BYTES)?;
    origin_fits(origin)?;
    fly_py::now_fits(now)?;
    let read = Rest { data, d, max_frame, origin, now };
    let (mut answers, mut last, mut at) = (PyBytes::new(py, &[]), None, start);
    loop {
        let (found, stop, end, outcome) = {
            // No container of Python's is made while the tails are borrowed: that could run its collector, and so its code.
            let (mut tails, routes) = (tails.try_borrow_mut()?, routes.try_borrow()?);
            let call = Call { d, routes: &routes, origin, now, flags };
            let (found, stop, end, known) = call.next(&tails, counts, at, max_frame, append_sets)?;
            let outcome = match &found {
                Some(run) => call.append(py, &mut tails, run, &known, at == start, answers.as_bytes())?,
                None => Outcome::Left,
            };
            (found, stop, end, outcome)
        };
        let (items, mut held) = (PyList::empty(py), None);
        match outcome {
            // The sets before it are answered now, and it is not: it is for the next call.
            Outcome::Later => return Ok((answers.into_any(), items, at, 0, None, last)),
            Outcome::Held(run, topic) => (held, last) = (Some(run), topic),
            Outcome::Answered(made, topic) => {
                (answers, last) = (made, Some(topic));
                // Sets often come one behind the other, as small frames.
                let more = matches!(found, Some(Found::Set(..))) && end - start < SETS_BYTES_MAX;
                if more && d.get(end + 2) == Some(&fly::PRODUCE_RECORDS) {
                    at = end;
                    continue;
                }
            }
            Outcome::Left => {
                if let Some(run) = &found {
                    items.append(fly_py::run_item(py, d, run, origin)?)?;
                }
            }
        }
        let (items, end, fatal, unknown) = match found {
            Some(Found::Set(..)) => (items, end, 0, None),
            _ => read.split(py, items, (end, stop), found.is_some(), |topic| {
                let (tails, routes) = (tails.try_borrow()?, routes.try_borrow()?);
                Ok(known(&tails, &routes, counts, topic)?.map(|(partitions, _)| partitions))
            })?,
        };
        let told = match held {
            Some(run) => run.into_pyobject(py)?.into_any(),
            None => answers.into_any(),
        };
        return Ok((told, items, end, fatal, unknown, last));
    }
}
