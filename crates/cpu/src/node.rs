//! Memory nodes: cores that are nearer to some of the machine's memory than to the rest.

use std::sync::OnceLock;

/// The cores of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node(Vec<usize>);

/// The nodes that have cores. One, or none, where there is nothing to tell apart.
pub(crate) fn all() -> &'static [Node] {
    static ALL: OnceLock<Vec<Node>> = OnceLock::new();
    ALL.get_or_init(|| {
        let Ok(folder) = std::fs::read_dir("/sys/devices/system/node") else { return Vec::new() };
        let mut nodes: Vec<(u32, Node)> = folder
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
                let cores = cores(&std::fs::read_to_string(entry.path().join("cpulist")).ok()?)?;
                (!cores.is_empty()).then_some((number, Node(cores)))
            })
            .collect();
        nodes.sort_by_key(|(number, _)| *number);
        nodes.into_iter().map(|(_, node)| node).collect()
    })
}

/// Reads a list as the kernel writes it: `0-3,8,10-11`.
fn cores(list: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?);
    }
    Some(all)
}

#[cfg(target_os = "linux")]
impl Node {
    /// Keeps the calling thread on this node's cores, as far as it may use them. If it may use none it stays free.
    pub(crate) fn stay(&self) {
        let size = size_of::<libc::cpu_set_t>();
        // SAFETY: all zeros are an empty set; the calls read or write a set of the size they are told, and `CPU_ISSET` and
        // `CPU_SET` are given cores that are inside of one.
        unsafe {
            let mut allowed = std::mem::zeroed::<libc::cpu_set_t>();
            if libc::sched_getaffinity(0, size, &mut allowed) != 0 {
                return;
            }
            let mut here = std::mem::zeroed::<libc::cpu_set_t>();
            for &core in self.0.iter().filter(|&&core| core < 8 * size && libc::CPU_ISSET(core, &allowed)) {
                libc::CPU_SET(core, &mut here);
            }
            if libc::CPU_COUNT(&here) > 0 {
                libc::sched_setaffinity(0, size, &here);
            }
        }
    }

    /// Whether the calling thread is on one of its cores now.
    pub(crate) fn is_here(&self) -> bool {
        // SAFETY: asks for a number.
        let core = unsafe { libc::sched_getcpu() };
        usize::try_from(core).is_ok_and(|core| self.0.contains(&core))
    }
}

#[cfg(not(target_os = "linux"))]
impl Node {
    pub(crate) fn stay(&self) {}

    pub(crate) fn is_here(&self) -> bool {
        false
    }
}

#[cfg(test)]
impl Node {
    pub(crate) fn of(cores: &[usize]) -> Self {
        Self(cores.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_read_as_the_kernel_writes_them() {
        assert_eq!(cores("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(cores("\n"), Some(Vec::new()), "a node of memory alone");
        assert_eq!(cores("0-x"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_stays_where_it_is_told() {
        let stays = std::thread::spawn(|| {
            // SAFETY: asks for a number.
            let core = usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or_default();
            let node = Node::of(&[core]);
            node.stay();
            Node::of(&[usize::MAX]).stay(); // which is not to be had, and changes nothing
            let still = |_| {
                std::thread::yield_now();
                node.is_here()
            };
            (0..1000).all(still) && !Node::of(&[core + 1]).is_here()
        });
        assert!(stays.join().is_ok_and(|stays| stays));
    }
}
