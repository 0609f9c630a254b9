//! Which tail has the oldest batch of all: a queue by serial, first in first out where it can be.
//!
//! A tail whose oldest batch was dropped comes back with the next one, which is mostly younger than all that wait: it goes to the end of a
//! run that is in order. What is not goes to a heap, where it costs the logarithm of all tails (a quarter of a publish over 10,000).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

#[derive(Default)]
pub struct Order {
    run: VecDeque<(u64, usize)>, // serials rise
    heap: BinaryHeap<Reverse<(u64, usize)>>,
}

impl Order {
    pub fn push(&mut self, serial: u64, slot: usize) {
        match self.run.back() {
            Some(last) if last.0 > serial => self.heap.push(Reverse((serial, slot))),
            _ => self.run.push_back((serial, slot)),
        }
    }

    /// Serial and slot of the oldest.
    pub fn first(&self) -> Option<(u64, usize)> {
        if self.is_run() { self.run.front().copied() } else { self.heap.peek().map(|Reverse(first)| *first) }
    }

    pub fn pop(&mut self) {
        if self.is_run() {
            self.run.pop_front();
        } else {
            self.heap.pop();
        }
    }

    /// The first comes back with a later serial.
    pub fn replace_first(&mut self, serial: u64, slot: usize) {
        let is_last = self.run.back().is_none_or(|last| last.0 <= serial);
        if self.is_run() || is_last {
            self.pop();
            self.push(serial, slot);
        } else if let Some(mut place) = self.heap.peek_mut() {
            *place = Reverse((serial, slot)); // one move of its place, where taking it out and putting it in again would be two
        }
    }

    /// The slot that is about so many behind the first. A guess, for fetching it.
    pub fn following(&self, number: usize) -> Option<usize> {
        let behind = if self.is_run() {
            self.run.get(number)
        } else {
            self.heap.as_slice().get(number).map(|Reverse(place)| place)
        };
        behind.map(|(_, slot)| *slot)
    }

    fn is_run(&self) -> bool {
        match (self.run.front(), self.heap.peek()) {
            (Some(first), Some(Reverse(other))) => first < other,
            (first, _) => first.is_some(),
        }
    }
}
