//! The threads that kernels run on.

use std::{
    cell::Cell,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread::{Builder, JoinHandle},
};

use arrayvec::ArrayVec;
use millrace_core::Threads;
use millrace_ring::Crew;

use crate::node::{self, Node};

/// A thread takes one of so many parts of its share of what is left: large ones at first, few enough to be cheap, and single
/// pieces in the end, so that nobody waits long for the last. (Polychronopoulos and Kuck, "Guided self-scheduling", 1987.)
const PARTS: u64 = 4;
/// The most memory nodes that are told apart.
const MAX_NODES: usize = 16;
/// The most stretches that work is cut into.
const MAX_STRETCHES: usize = 64;

/// The threads of one device. They are started when first needed, so that opening a device costs nothing.
///
/// Work is cut into a stretch for each thread, which takes from its own before it helps with others'. The same stretch of an
/// array of the same size is that thread's again in the next launch: what its processor's cache still has of it is used. Where a
/// machine's memory has several nodes, each thread stays on the cores of one, the stretches of a node are neighbours, and memory
/// belongs to the node whose thread writes it first.
#[derive(Debug)]
pub(crate) struct Team {
    count: usize,
    nodes: Vec<Node>,
    crew: Arc<Crew>,
    /// The threads beside the caller, as many as could be started.
    helpers: OnceLock<Vec<JoinHandle<()>>>,
}

impl Team {
    pub(crate) fn new(count: usize) -> Self {
        Self::over(count, node::all())
    }

    fn over(count: usize, nodes: &[Node]) -> Self {
        let nodes = nodes[..nodes.len().min(MAX_NODES)].to_vec();
        Self { count, nodes, crew: Arc::new(Crew::new()), helpers: OnceLock::new() }
    }

    fn start(&self) -> Vec<JoinHandle<()>> {
        let helper = |n: usize| {
            let (crew, nodes) = (self.crew.clone(), self.nodes.len().max(1));
            let (node, place) = (n % nodes, n / nodes);
            let home = self.nodes.get(node).filter(|_| self.nodes.len() > 1).cloned();
            let serve = move || {
                if let Some(home) = home {
                    home.stay();
                }
                SEAT.set(Some(Seat { node, place }));
                crew.serve();
            };
            Builder::new().name(format!("millrace-team-{n}")).spawn(serve).ok()
        };
        (1..self.count).map_while(helper).collect()
    }

    /// Where the calling thread belongs.
    fn seat(&self) -> Seat {
        SEAT.get().unwrap_or_else(|| {
            // A caller may be moved at any time: then its guess is wrong for one launch.
            let here = if self.nodes.len() < 2 { None } else { self.nodes.iter().position(Node::is_here) };
            Seat { node: here.unwrap_or_default(), place: 0 }
        })
    }
}

/// Where a thread belongs: a node, and a place among those who stay there.
#[derive(Debug, Clone, Copy)]
struct Seat {
    node: usize,
    place: usize,
}

thread_local! {
    /// That of a helper.
    static SEAT: Cell<Option<Seat>> = const { Cell::new(None) };
}

impl Drop for Team {
    fn drop(&mut self) {
        self.crew.dismiss();
        for helper in self.helpers.take().unwrap_or_default() {
            // It caught whatever a kernel threw.
            let _ = helper.join();
        }
    }
}

impl Threads for Team {
    fn count(&self) -> usize {
        self.count
    }

    fn for_each(&self, n: u64, each: &(dyn Fn(u64) + Sync)) {
        let nodes = self.nodes.len().max(1);
        let places = self.count.div_ceil(nodes).clamp(1, MAX_STRETCHES / nodes);
        let stretches = (nodes * places) as u64;
        let start = |stretch: u64| n * stretch / stretches;
        let next: ArrayVec<AtomicU64, MAX_STRETCHES> = (0..stretches).map(|stretch| start(stretch).into()).collect();
        let parts = (self.count as u64 * PARTS).div_ceil(stretches);
        let work = || {
            let Seat { node, place } = self.seat();
            let home = (node % nodes * places + place % places) as u64;
            for stretch in (home..stretches).chain(0..home) {
                let (next, end) = (&next[stretch as usize], start(stretch + 1));
                let after = |piece: u64| (piece < end).then(|| piece + (end - piece).div_ceil(parts));
                while let Ok(piece) = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after) {
                    (piece..after(piece).unwrap_or(end)).for_each(each);
                }
            }
        };
        if n > 1 && self.count > 1 {
            self.helpers.get_or_init(|| self.start());
            self.crew.run(&work);
        } else {
            work();
        }
    }
}

/// The caller alone.
pub(crate) struct Alone;

impl Threads for Alone {
    fn count(&self) -> usize {
        1
    }

    fn for_each(&self, n: u64, each: &(dyn Fn(u64) + Sync)) {
        (0..n).for_each(each);
    }
}

/// A team that is used also for small work.
pub(crate) struct All<'a>(pub(crate) &'a Team);

impl Threads for All<'_> {
    fn count(&self) -> usize {
        self.0.count()
    }

    fn all_wanted(&self) -> bool {
        true
    }

    fn for_each(&self, n: u64, each: &(dyn Fn(u64) + Sync)) {
        self.0.for_each(n, each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_done_once_whatever_the_nodes() {
        for (nodes, count) in [0, 1, 2, 3, MAX_NODES + 4].into_iter().flat_map(|nodes| [(nodes, 3), (nodes, 70)]) {
            let team = Team::over(count, &vec![Node::of(&[0, 1]); nodes]);
            for n in [0, 1, 2, 7, 100, 1001] {
                let done: Vec<_> = (0..n).map(|_| AtomicU64::new(0)).collect();
                team.for_each(n, &|piece| {
                    done[piece as usize].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    done.iter().all(|times| times.load(Ordering::Relaxed) == 1),
                    "{n} pieces, {nodes} nodes, {count} threads"
                );
            }
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_begins_with_its_own_nodes_stretch() {
        let cores: Vec<usize> = (0..4096).collect();
        // The caller is on the second of three, wherever it runs.
        let team = Team::over(1, &[Node::of(&[]), Node::of(&cores), Node::of(&[])]);
        let order = std::sync::Mutex::new(Vec::new());
        team.for_each(9, &|piece| order.lock().unwrap().push(piece));
        assert_eq!(order.into_inner().unwrap(), [3, 4, 5, 6, 7, 8, 0, 1, 2]);
    }

    #[test]
    fn every_thread_begins_with_the_same_stretch_again() {
        let team = Team::over(2, &[Node::of(&[0, 1])]);
        let me = std::thread::current().id();
        for _ in 0..5 {
            let firsts = std::sync::Mutex::new(std::collections::HashMap::new());
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
            team.for_each(64, &|piece| {
                firsts.lock().unwrap().entry(std::thread::current().id()).or_insert(piece);
                // Nobody helps before both have begun.
                while firsts.lock().unwrap().len() < 2 && std::time::Instant::now() < deadline {
                    std::thread::yield_now();
                }
            });
            let firsts = firsts.into_inner().unwrap();
            assert_eq!((firsts.len(), firsts[&me]), (2, 0));
            assert!(firsts.iter().all(|(thread, first)| *thread == me || *first == 32), "{firsts:?}");
        }
    }
}
