//! Two devices in one process. With one device each test prints that it did nothing.

use crate::{alloc, contents, device, kernels::poke, pattern, peers::another, queue, word_of};
use kp_hal::{
    Device, ErrorKind, Queue,
    op::{GemmArgs, GemmProblem},
};
use kp_nvidia::{Config, KERNELS};
use std::{sync::Arc, thread};

const ONE: Config = Config::new([1, 1, 1], 1);

fn both() -> Option<([Arc<dyn Device>; 2], impl Sized)> {
    let (first, rest) = device()?;
    Some(([first, another()?], rest))
}

/// A launch names a stream and no context, and whichever device was used last is current: each must land on its own.
#[test]
fn one_thread_serves_two_devices_in_turns() {
    let Some((devices, _rest)) = both() else { return };
    let mut queues = devices.each_ref().map(queue);
    let add = devices.each_ref().map(|device| crate::function(device, "add"));
    let mut cells = devices.each_ref().map(|device| alloc(device, 4));
    for (queue, cell) in queues.iter_mut().zip(&mut cells) {
        queue.fill(cell.slice_mut(), 0).expect("that device's");
    }
    for _ in 0..200 {
        for (i, queue) in queues.iter_mut().enumerate() {
            poke(&mut **queue, &add[i], &ONE, &mut cells[i], 1 + i as u32).expect("a plain launch");
            // Makes the other device's context current for the next launch.
            drop(alloc(&devices[1 - i], 256));
        }
    }
    for (i, queue) in queues.iter_mut().enumerate() {
        let (from, to) = (queue.mark().expect("no fault"), queue.mark().expect("no fault"));
        assert_eq!(word_of(&mut **queue, &cells[i]), 200 * (1 + i as u32), "device {i}");
        assert!(queue.elapsed(from, to).expect("no fault").is_some(), "device {i}");
    }
}

#[test]
fn each_device_has_its_recording() {
    let Some((devices, _rest)) = both() else { return };
    let mut queues = devices.each_ref().map(queue);
    let add = devices.each_ref().map(|device| crate::function(device, "add"));
    let mut cells = devices.each_ref().map(|device| alloc(device, 4));
    for (queue, cell) in queues.iter_mut().zip(&mut cells) {
        queue.fill(cell.slice_mut(), 0).expect("that device's");
        queue.sync().expect("no fault");
    }
    let [ours, theirs] = &mut queues;
    let [cell, other] = &mut cells;
    let graph = ours.capture(|queue| {
        poke(queue, &add[0], &ONE, cell, 3)?;
        // Not part of the recording: that queue runs on.
        poke(&mut **theirs, &add[1], &ONE, other, 5)?;
        poke(queue, &add[0], &ONE, cell, 4)
    });
    let graph = graph.expect("all of it can be recorded");
    let second = theirs.capture(|queue| poke(queue, &add[1], &ONE, other, 10)).expect("all of it can be recorded");
    for _ in 0..20 {
        // SAFETY: the buffers are alive, and no other queue knows them.
        unsafe { graph.replay(&mut **ours) }.expect("this device's");
        // SAFETY: as above.
        unsafe { second.replay(&mut **theirs) }.expect("that device's");
    }
    // SAFETY: as above; nothing is replayed.
    let refused = unsafe { graph.replay(&mut **theirs) }.expect_err("recorded elsewhere");
    assert!(matches!(refused.kind(), ErrorKind::BadArgs(_)), "{refused}");
    assert_eq!((word_of(&mut **ours, cell), word_of(&mut **theirs, other)), (140, 205));
}

#[test]
fn copies_cross_in_both_directions_at_once() {
    let Some((devices, _rest)) = both() else { return };
    thread::scope(|scope| {
        for thread in 0..4_usize {
            let [here, there] = [&devices[thread % 2], &devices[1 - thread % 2]];
            scope.spawn(move || {
                let (mut ours, mut theirs) = (queue(here), queue(there));
                for round in 0..40_u64 {
                    let bytes = 1 + (thread as u64 * 7919 + round * 104_729) % (4 << 20);
                    let sent = pattern(bytes as usize, thread as u64 * 100 + round);
                    let (mut from, mut to) = (alloc(there, bytes), alloc(here, bytes));
                    theirs.upload(from.slice_mut(), &sent).expect("same length");
                    theirs.sync().expect("no fault");
                    ours.copy_from_peer(to.slice_mut(), from.slice()).expect("both are open");
                    assert!(contents(&mut *ours, &to) == sent, "thread {thread}, round {round}: {bytes} bytes");
                }
            });
        }
    });
}

/// Modules, tensor maps, library handles and scratch belong to a device: every kernel that runs the problem gives the same bits on both.
#[test]
fn products_are_the_same_on_both() {
    let Some((devices, _rest)) = both() else { return };
    for line in ["gemm 1x128x2112x7168 bf16:bf16:bf16 b=col", "gemm 1x200x272x192 f32:f32:f32"] {
        let problem: GemmProblem = line.parse().expect("a problem");
        let [a_bytes, b_bytes] = [problem.a, problem.b].map(|operand| operand.dtype().bits() / 8);
        let (m, n, k) = (problem.m as usize, problem.n as usize, problem.k as usize);
        // Halves of 1 to 2 in either type: any sign and mantissa, one exponent.
        let numbers = |elements: usize, bytes: u32, seed| {
            let mut raw = pattern(elements * bytes as usize, seed);
            raw.chunks_mut(bytes as usize).for_each(|word| {
                let last = word.len() - 1;
                word[last] = word[last] & 0x80 | 0x3f;
            });
            raw
        };
        let (a, b) = (numbers(m * k, a_bytes, 3), numbers(k * n, b_bytes, 4));
        let mut ran = 0;
        for kernel in KERNELS.gemm {
            let caps = devices[0].caps();
            let Ok(variants) = kernel.supports(caps, &problem) else { continue };
            let variant = variants.iter().min_by_key(|&variant| kernel.estimate(caps, &problem, variant));
            let variant = variant.expect("who supports a problem has a variant for it");
            let plans = devices.each_ref().map(|device| kernel.plan(device, &problem, variant).expect("it said so"));
            let mut queues = devices.each_ref().map(queue);
            let results: Vec<Vec<u8>> = (0..2)
                .map(|i| {
                    let upload = |queue: &mut dyn Queue, bytes: &[u8]| {
                        let mut buffer = alloc(&devices[i], bytes.len() as u64);
                        queue.upload(buffer.slice_mut(), bytes).expect("same length");
                        buffer
                    };
                    let (a, b) = (upload(&mut *queues[i], &a), upload(&mut *queues[i], &b));
                    let mut d = alloc(&devices[i], (m * n) as u64 * u64::from(problem.d.dtype().bits() / 8));
                    let mut args = GemmArgs::new(a.slice(), b.slice(), d.slice_mut());
                    args.alpha = 0.5;
                    let refused = plans[1 - i].launch(&mut *queues[i], &args).expect_err("another device's plan");
                    assert!(matches!(refused.kind(), ErrorKind::BadArgs(_)), "{refused}");
                    plans[i].launch(&mut *queues[i], &args).expect("its own plan");
                    contents(&mut *queues[i], &d)
                })
                .collect();
            assert!(results[0] == results[1], "{line}: {}#{} differs", kernel.name(), variant.0);
            assert!(results[0].iter().any(|&byte| byte != 0), "{line}: {}#{}", kernel.name(), variant.0);
            ran += 1;
        }
        println!("{line}: {ran} kernels");
        assert!(ran > 0, "no kernel runs {line}");
    }
}
