//! Every option of the page's table by the launcher: a program that ends otherwise with it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::Command;

use cudarc::driver::{CudaContext, result, sys};

/// `lanes` is `if (t < 20) __syncthreads();`, `warps` leaves a whole warp out, `equal` lets all threads store
/// one value, `faults` has three mistakes, `fresh` reads what nothing wrote, `step` adds one.
const KERNELS: &str = "
.version 8.7
.target sm_90
.address_size 64
.visible .entry lanes(.param .u64 a) {
  .reg .b32 %r<3>; .reg .pred %p<2>;
  mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 20; @%p1 bra X; bar.sync 0; X: ret; }
.visible .entry warps(.param .u64 a) {
  .reg .b32 %r<3>; .reg .pred %p<2>;
  mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 32; @%p1 ret; bar.sync 0; ret; }
.visible .entry equal(.param .u64 a) {
  .reg .b64 %rd<2>; ld.param.u64 %rd1, [a]; st.global.u32 [%rd1], 7; ret; }
.visible .entry faults(.param .u64 a) {
  .reg .b64 %rd<2>; .reg .b32 %r<3>; ld.param.u64 %rd1, [a];
  ld.global.u32 %r1, [%rd1+4096]; ld.global.u32 %r1, [%rd1+8192]; ld.global.u32 %r1, [%rd1+2]; ret; }
.visible .entry fresh(.param .u64 a) {
  .reg .b64 %rd<2>; .reg .b32 %r<3>; ld.param.u64 %rd1, [a]; ld.global.u32 %r1, [%rd1+256]; ret; }
.visible .entry step(.param .u64 a) {
  .reg .b64 %rd<3>; .reg .b32 %r<3>; ld.param.u64 %rd1, [a]; mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2;
  ld.global.u32 %r2, [%rd1]; add.u32 %r2, %r2, 1; st.global.u32 [%rd1], %r2; ret; }
";

/// What the launched program does: this test program again, with a kernel named by the environment.
#[test]
fn child() {
    let Ok(part) = std::env::var("LAUNCHED_PART") else { return };
    let context = CudaContext::new(0).expect("a device");
    if part == "devices" {
        let (mut count, mut bytes) = (0, 0);
        // SAFETY: places for the answers.
        unsafe {
            sys::cuDeviceGetCount(&mut count).result().unwrap();
            sys::cuDeviceTotalMem_v2(&mut bytes, count - 1).result().unwrap();
        }
        println!("{count} devices of {bytes} bytes");
        return;
    }
    // The second stream is there for `streams` alone: nothing orders the two.
    let streams = [context.new_stream().unwrap(), context.new_stream().unwrap()];
    let text = std::ffi::CString::new(KERNELS).unwrap();
    // SAFETY: a text with its NUL, kernels with the argument they take.
    unsafe {
        let module = result::module::load_data(text.as_ptr().cast()).unwrap();
        let name = std::ffi::CString::new(if part == "streams" { "step" } else { part.as_str() }).unwrap();
        let kernel = result::module::get_function(module, name).unwrap();
        let x = result::malloc_sync(512).unwrap();
        result::memset_d8_sync(x, 0, 256).unwrap();
        result::ctx::synchronize().unwrap();
        let launches = if part == "streams" { 2 } else { 1 };
        for stream in &streams[..launches] {
            let mut args = [(&raw const x).cast_mut().cast()];
            let _ = result::launch_kernel(kernel, (1, 1, 1), (64, 1, 1), 0, stream.cu_stream(), &mut args);
        }
        let _ = sys::cuCtxSynchronize();
    }
}

/// The launcher's status, and all that was said.
fn run(options: &[&str], part: &str) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_soft-cuda"));
    command.arg("run").args(options).arg("--").arg(std::env::current_exe().unwrap());
    let output = command.args(["child", "--exact", "--nocapture"]).env("LAUNCHED_PART", part);
    let output = output.output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    (output.status.code(), said)
}

/// A fault of this kind under the first options, and none under the second.
fn decides(part: &str, kind: &str, with: &[&str], without: &[&str]) {
    let (status, said) = run(with, part);
    assert!(status == Some(1) && said.contains(&format!("soft-cuda: 1. {kind}")), "{part} {with:?}: {said}");
    let (status, said) = run(without, part);
    assert!(status == Some(0) && said.contains("0 distinct faults"), "{part} {without:?}: {said}");
}

#[test]
fn barriers_say_who_may_be_absent() {
    decides("lanes", "Divergence", &[], &["--barriers", "ended"]);
    decides("lanes", "Divergence", &["--barriers", "ended-warps"], &["--barriers", "ended"]);
    decides("warps", "Divergence", &["--barriers", "nobody"], &[]);
    let (status, said) = run(&["--barriers", "some"], "warps");
    assert!(status == Some(2) && said.contains("ended, ended-warps or nobody"), "{said}");
}

#[test]
fn checks_are_those_that_are_named() {
    decides("equal", "GlobalRace", &["--check", "races,equal-stores"], &["--check", "races"]);
    decides("fresh", "Uninitialised", &["--check", "init"], &["--check", "races,streams,equal-stores"]);
    decides("streams", "StreamRace", &["--check", "races,streams"], &["--check", "races,init"]);
    decides("streams", "StreamRace", &[], &["--check", "bounds"]);
}

#[test]
fn so_many_faults_end_a_kernel() {
    for (options, count) in [(&[] as &[&str], 3), (&["--faults", "2"], 2), (&["--faults", "1"], 1)] {
        let (status, said) = run(options, "faults");
        let words = format!("{count} distinct fault");
        assert!(status == Some(1) && said.contains(&words), "{options:?}: {said}");
        assert!(!said.contains(&format!("soft-cuda: {}. ", count + 1)), "{options:?}: {said}");
    }
}

#[test]
fn devices_and_their_memory_are_chosen() {
    let (status, said) = run(&["--devices", "3", "--memory", "1073741824"], "devices");
    assert!(status == Some(0) && said.contains("3 devices of 1073741824 bytes"), "{said}");
    let (status, said) = run(&[], "devices");
    assert!(status == Some(0) && said.contains("1 devices of 8589934592 bytes"), "{said}");
    let (status, said) = run(&["--devices", "65"], "devices");
    assert!(status == Some(2) && said.contains("1 to 64"), "{said}");
}

/// Threads change the time alone.
#[test]
fn threads_find_the_same() {
    for threads in ["1", "4"] {
        decides(
            "lanes",
            "Divergence",
            &["--threads", threads],
            &["--threads", threads, "--barriers", "ended"],
        );
        decides(
            "streams",
            "StreamRace",
            &["--threads", threads],
            &["--threads", threads, "--check", "races"],
        );
    }
}
