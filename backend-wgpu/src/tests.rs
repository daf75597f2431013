//! Tests on whatever adapter there is.
#![allow(clippy::unwrap_used)]

use crate::{Wgpu, WgpuConfig, WgpuMem};
use engraft_core::Error;
use engraft_core::backend::{Backend, Stream, block_on};
use engraft_core::mem::Buf;
use std::sync::Arc;

/// Adapters that a test may open; the lanes ask for them by ENGRAFT_REQUIRE.
pub(crate) fn opened() -> Option<Arc<Wgpu>> {
    opened_as(WgpuConfig::default())
}

/// The same with more to ask for.
pub(crate) fn opened_as(config: WgpuConfig) -> Option<Arc<Wgpu>> {
    let required = std::env::var("ENGRAFT_REQUIRE").ok();
    let adapter = required.as_deref().and_then(|name| name.strip_prefix("wgpu:")).map(str::to_string);
    match Wgpu::new(WgpuConfig { adapter, software: true, ..config }) {
        Ok(gpu) => Some(gpu),
        Err(e) => {
            assert!(required.is_none_or(|name| !name.starts_with("wgpu")), "{e}");
            println!("skipped: {e}");
            None
        }
    }
}

#[test]
fn a_lost_device_is_an_error_everywhere_and_stays_one() {
    let Some(gpu) = opened() else { return };
    let mut stream = gpu.stream().unwrap();
    let words: Buf<WgpuMem, u32> = Buf::new(gpu.alloc(256).unwrap(), 4).unwrap();
    stream.sync().unwrap();
    gpu.gpu.device.destroy();
    for _ in 0..2 {
        let e = stream.sync().unwrap_err();
        assert!(matches!(e, Error::DeviceLost { .. }), "{e}");
    }
    let read = stream.download(words.view());
    let ended = read.and_then(|ticket| block_on(stream.collect(ticket, &mut [0u32; 4])));
    assert!(matches!(ended, Err(Error::DeviceLost { .. })), "{ended:?}");
}

#[test]
fn times_are_the_devices_and_move_on() {
    let Some(gpu) = opened() else { return };
    let mut stream = gpu.stream().unwrap();
    // More than a set of queries holds.
    let events: Vec<_> = (0..600).map(|_| stream.record().unwrap()).collect();
    stream.sync().unwrap();
    let of_device = gpu.gpu.device.features().contains(wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS);
    assert!(events.iter().all(|e| e.is_of_device() == of_device));
    let mut sum = 0.0;
    for pair in events.windows(2) {
        let us = stream.elapsed_us(&pair[0], &pair[1]).unwrap();
        assert!((0.0..1e7).contains(&us), "{us}");
        sum += us;
    }
    let whole = stream.elapsed_us(&events[0], &events[599]).unwrap();
    assert!((whole - sum).abs() <= 1e-6 * whole.max(1.0), "{whole} {sum}");
    println!("{}: by the {} clock, {whole:.1} us", gpu.name(), if of_device { "device's" } else { "host's" });
}
