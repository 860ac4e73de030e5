//! Launches: parameters, attributes, refusals, recordings.

use crate::{alloc, contents, device, function, queue, word_of as word};
use kp_hal::{Buffer, ErrorKind, Queue, Result};
use kp_nvidia::{Config, Function, NvidiaQueue};
use std::ffi::c_void;

/// Enqueues `store` or `add` of `value` at the start of `buffer`.
pub(crate) fn poke(
    queue: &mut dyn Queue,
    function: &Function,
    config: &Config,
    buffer: &mut Buffer,
    mut value: u32,
) -> Result<()> {
    let queue: &mut NvidiaQueue = queue.downcast_mut().expect("a queue of this backend");
    let mut addr = buffer.slice_mut().addr();
    let mut params = [(&raw mut addr).cast::<c_void>(), (&raw mut value).cast()];
    // SAFETY: the buffer is borrowed exclusively, and external work on it is ordered by the queue; two parameters, as declared.
    unsafe { queue.launch("poke", function, config, &mut params) }
}

const ONE: Config = Config::new([1, 1, 1], 1);

#[test]
fn launches_pass_parameters_and_shapes() {
    let Some((device, _rest)) = device() else { return };
    let mut queue = queue(&device);
    let (store, add) = (function(&device, "store"), function(&device, "add"));
    assert!(add.resources().max_threads >= 1024 && add.resources().local_bytes == 0, "{:?}", add.resources());
    let mut cell = alloc(&device, 4);
    let most = device.caps().shared_bytes;
    let mut shapes = vec![
        (Config::new([1, 1, 1], 1), 1),
        (Config::new([3, 5, 7], 64), 3 * 5 * 7 * 64),
        (Config { shared_bytes: most, ..Config::new([4, 1, 1], 32) }, 128),
        (Config { cooperative: true, ..Config::new([8, 1, 1], 32) }, 256),
    ];
    if device.caps().has("clusters") {
        shapes.push((Config { cluster: 4, ..Config::new([8, 1, 1], 32) }, 256));
        shapes.push((Config { cluster: 16, ..Config::new([16, 1, 1], 32) }, 512));
        shapes.push((Config { cluster: 2, programmatic: true, ..Config::new([2, 3, 1], 32) }, 192));
    }
    for (config, threads) in shapes {
        poke(&mut *queue, &store, &ONE, &mut cell, 1000).expect("a plain launch");
        poke(&mut *queue, &add, &config, &mut cell, 3).unwrap_or_else(|e| panic!("{config:?}: {e}"));
        assert_eq!(word(&mut *queue, &cell), 1000 + 3 * threads, "{config:?}");
    }
}

#[test]
fn a_refused_launch_leaves_the_queue_usable() {
    let Some((device, _rest)) = device() else { return };
    let mut queue = queue(&device);
    let store = function(&device, "store");
    let mut cell = alloc(&device, 4);
    let wrong = [
        Config::new([1, 1, 1], 4096),
        Config::new([0, 1, 1], 1),
        Config { shared_bytes: 1 << 30, ..ONE },
        Config { cluster: 3, ..Config::new([4, 1, 1], 32) },
    ];
    for config in wrong {
        let error = poke(&mut *queue, &store, &config, &mut cell, 1).expect_err("no such launch");
        assert!(matches!(error.kind(), ErrorKind::Driver(_)), "{config:?}: {error}");
        println!("{error}");
        poke(&mut *queue, &store, &ONE, &mut cell, 5).expect("a plain launch");
        assert_eq!(word(&mut *queue, &cell), 5);
    }
}

#[test]
fn recordings_run_when_replayed() {
    let Some((device, _rest)) = device() else { return };
    let mut queue = queue(&device);
    let (store, add) = (function(&device, "store"), function(&device, "add"));
    let (mut a, mut b) = (alloc(&device, 4), alloc(&device, 4));
    poke(&mut *queue, &store, &ONE, &mut a, 10).expect("a plain launch");
    queue.fill(b.slice_mut(), 0).expect("this device's");
    let graph = queue.capture(|queue| {
        // Memory comes and goes, and kernels are loaded, while a recording is under way.
        let mut other = alloc(&device, 1 << 20);
        let again = function(&device, "add");
        queue.fill(other.slice_mut(), 1).expect("this device's");
        (0..10).try_for_each(|_| poke(queue, &again, &ONE, &mut a, 1))?;
        queue.copy(b.slice_mut(), a.slice())?;
        std::mem::forget(other);
        poke(queue, &add, &ONE, &mut b, 7)
    });
    let graph = graph.expect("all of it can be recorded");
    assert_eq!((word(&mut *queue, &a), word(&mut *queue, &b)), (10, 0));
    for round in 1..=50 {
        // SAFETY: the buffers are alive, and no other queue knows them.
        unsafe { graph.replay(&mut *queue) }.expect("this device's");
        assert_eq!((word(&mut *queue, &a), word(&mut *queue, &b)), (10 + 10 * round, 17 + 10 * round));
    }
    // Dropped while it runs.
    for _ in 0..200 {
        // SAFETY: as above.
        unsafe { graph.replay(&mut *queue) }.expect("this device's");
    }
    drop(graph);
    assert_eq!(word(&mut *queue, &a), 10 + 10 * 250);
}

#[test]
fn what_cannot_be_recorded_says_so() {
    let Some((device, _rest)) = device() else { return };
    let mut queue = queue(&device);
    let mut other = crate::queue(&device);
    let mut cell = alloc(&device, 4);
    let point = other.mark().expect("no fault");
    let refused = |kind: Result<()>| matches!(kind.expect_err("must refuse").kind(), ErrorKind::NotCapturable { .. });
    queue.reserve_scratch(1000).expect("there is room");
    let empty = queue.capture(|queue| {
        assert!(refused(queue.sync()) && refused(queue.upload(cell.slice_mut(), &[1; 4])));
        assert!(refused(queue.download(&mut [0; 4], cell.slice())) && refused(queue.reserve_scratch(1 << 20)));
        assert!(refused(queue.begin_capture()) && refused(queue.mark().map(|_| ())) && refused(queue.wait(point)));
        queue.reserve_scratch(1000)
    });
    drop(empty.expect("an empty recording"));
    assert!(refused(queue.end_capture().map(|_| ())));
    queue.upload(cell.slice_mut(), &[1, 2, 3, 4]).expect("no recording any more");
    assert_eq!(contents(&mut *queue, &cell), [1, 2, 3, 4]);
    // A queue may go while it records.
    queue.begin_capture().expect("no recording under way");
    drop(queue);
    other.sync().expect("no fault");
}
