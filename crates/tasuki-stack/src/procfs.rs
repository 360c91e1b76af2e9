//! Processes as `/proc` shows them: who descends from whom, who is stopped, and who
//! was left over by a stack that was killed.
//!
//! PostgreSQL puts every backend into a process group of its own, so a signal to a
//! group would miss them; only the tree tells who belongs together. Files that need
//! the right to trace (`cwd`, `environ`) are avoided, because root in a container
//! often lacks it.

use std::{collections::HashMap, fs};

use rustix::process::{Pid, Signal, kill_process};

/// What `/proc/<pid>/stat` says about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    parent: u32,
    state: char,
}

/// The process and all its descendants, parents first. Zombies don't count.
pub(crate) fn family(root: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for pid in all() {
        if let Some(stat) = stat(pid).filter(|stat| !stat.is_dead()) {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    let mut family = Vec::new();
    let mut next = vec![root];
    while let Some(pid) = next.pop() {
        next.extend(children.remove(&pid).unwrap_or_default());
        if is_alive(pid) {
            family.push(pid);
        }
    }
    family
}

/// Whether the process exists and is not merely waiting to be reaped.
pub(crate) fn is_alive(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| !stat.is_dead())
}

/// Whether the number is in use, be it by a process that waits to be reaped.
pub(crate) fn exists(pid: u32) -> bool {
    stat(pid).is_some()
}

/// Whether the process is stopped by SIGSTOP.
pub(crate) fn is_stopped(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| matches!(stat.state, 'T' | 't'))
}

/// Processes named `name` with one of the `marks` in their command line.
pub(crate) fn find(name: &str, marks: &[&str]) -> Vec<u32> {
    all()
        .filter(|pid| {
            fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|comm| comm.trim_end() == name)
        })
        .filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            is_alive(*pid) && marks.iter().any(|mark| line.contains(mark))
        })
        .collect()
}

/// Sends a signal; a process that has gone meanwhile is not an error here.
pub(crate) fn signal(pid: u32, signal: Signal) {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return;
    };
    if let Err(error) = kill_process(pid, signal) {
        tracing::debug!(pid = pid.as_raw_nonzero().get(), %error, "signal not delivered");
    }
}

impl Stat {
    fn is_dead(self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

fn all() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

fn stat(pid: u32) -> Option<Stat> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses `42 (any name) S 1 …`; the name may itself contain spaces and brackets.
fn parse(line: &str) -> Option<Stat> {
    let mut fields = line.rsplit_once(')')?.1.split_whitespace();
    Some(Stat {
        state: fields.next()?.chars().next()?,
        parent: fields.next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_confuse_the_parser() {
        assert_eq!(
            parse("42 (a) b) (c) T 7 42 0"),
            Some(Stat {
                parent: 7,
                state: 'T'
            })
        );
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn this_process_is_alive_and_in_its_own_family() {
        let me = std::process::id();

        assert!(is_alive(me));
        assert!(!is_stopped(me));
        assert_eq!(family(me).first(), Some(&me));
    }
}
