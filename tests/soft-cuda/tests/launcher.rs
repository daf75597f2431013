//! `soft-cuda run`: a program that asks for `libcuda.so` by name, as it is; summary, status, settings,
//! assembler.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use cudarc::driver::{CudaContext, result, sys};

const KERNELS: &str = include_str!("common/kernels.ptx");

/// What the launched program does: this test program again, with its part chosen by the environment.
#[test]
fn child() {
    let Ok(part) = std::env::var("LAUNCHED_PART") else { return };
    if part == "nothing" {
        return;
    }
    if part == "links" {
        // SAFETY: the double, which runs nothing when it is loaded.
        match unsafe { libloading::Library::new("libnvJitLink.so.13") } {
            // SAFETY: the type is that of nvJitLink's header.
            Ok(library) => unsafe {
                let version =
                    library.get::<unsafe extern "C" fn(*mut u32, *mut u32) -> u32>(b"nvJitLinkVersion");
                let (mut major, mut minor) = (0, 0);
                assert_eq!(version.unwrap()(&mut major, &mut minor), 0);
                println!("nvJitLink {major}.{minor}");
            },
            Err(_) => println!("no nvJitLink"),
        }
        return;
    }
    if part == "prints" {
        return prints();
    }
    if part.starts_with("leaves") {
        leaves(&part);
    }
    if part == "waits" {
        work("wrong");
        println!("waiting");
        std::thread::sleep(std::time::Duration::from_secs(100));
        return;
    }
    work(&part);
}

/// Three launches, with a buffer that is large enough or not.
fn work(part: &str) {
    let context = CudaContext::new(0).expect("a device");
    let stream = context.new_stream().unwrap();
    let text = std::ffi::CString::new(KERNELS).unwrap();
    // SAFETY: a text with its NUL, kernels with the arguments they take.
    unsafe {
        let module = result::module::load_data(text.as_ptr().cast()).unwrap();
        let scale = result::module::get_function(module, c"scale".into()).unwrap();
        let (n, a) = (64u32, 2f32);
        let bytes = if part == "wrong" { 128 } else { 256 };
        let x = result::malloc_sync(bytes).unwrap();
        if part != "wrong" {
            result::memset_d8_sync(x, 0, bytes).unwrap();
            // The stream is a non-blocking one, and a memset does not wait.
            result::ctx::synchronize().unwrap();
        }
        let mut args = [
            (&raw const x).cast_mut().cast(),
            (&raw const n).cast_mut().cast(),
            (&raw const a).cast_mut().cast(),
        ];
        for _ in 0..3 {
            let _ = result::launch_kernel(scale, (1, 1, 1), (64, 1, 1), 0, stream.cu_stream(), &mut args);
        }
        let code = sys::cuCtxSynchronize();
        println!("the program saw {code:?}");
    }
}

/// Ends without waiting for what it has submitted.
fn leaves(part: &str) -> ! {
    unsafe extern "C" fn called(_: *mut std::ffi::c_void) {
        println!("the function was called");
    }
    let context = CudaContext::new(0).expect("a device");
    let stream = context.new_stream().unwrap();
    let text = std::ffi::CString::new(KERNELS).unwrap();
    let mut own = vec![0u8; 8192];
    // SAFETY: a text with its NUL, kernels with the arguments they take, memory that lives to the end.
    unsafe {
        let module = result::module::load_data(text.as_ptr().cast()).unwrap();
        let scale = result::module::get_function(module, c"scale".into()).unwrap();
        let (n, a) = (64u32, 2f32);
        let x = result::malloc_sync(256).unwrap();
        if part != "leaves-wrong" {
            result::memset_d8_sync(x, 0, 256).unwrap();
            result::ctx::synchronize().unwrap();
        }
        match part {
            "leaves-function" => {
                let nothing = std::ptr::null_mut();
                sys::cuLaunchHostFunc(stream.cu_stream(), Some(called), nothing).result().unwrap();
            }
            "leaves-registered" => {
                sys::cuMemHostRegister_v2(own.as_mut_ptr().cast(), own.len(), 0).result().unwrap();
            }
            _ => {}
        }
        let mut args = [
            (&raw const x).cast_mut().cast(),
            (&raw const n).cast_mut().cast(),
            (&raw const a).cast_mut().cast(),
        ];
        result::launch_kernel(scale, (1, 1, 1), (64, 1, 1), 0, stream.cu_stream(), &mut args).unwrap();
    }
    std::process::exit(0)
}

/// A GPU would have run it, or not, as it came; here it is checked, or said not to be.
#[test]
fn what_a_program_leaves_behind_is_checked_at_its_end() {
    for order in ["eager", "latest", "others-first", "seeded3"] {
        let (output, said) = run(&["--order", order], "leaves-wrong");
        assert!(
            output.status.code() == Some(1) && said.contains("soft-cuda: 1. Uninitialised"),
            "{order}: {said}"
        );
        let (output, said) = run(&["--order", order], "leaves-right");
        assert!(
            output.status.code() == Some(0) && said.contains("1 launches of 1 kernels"),
            "{order}: {said}"
        );
    }
    // Its functions are not called, and memory of its own may be gone.
    for (part, left) in [("leaves-function", 2), ("leaves-registered", 1)] {
        let (output, said) = run(&[], part);
        let words = format!("{left} operations had not run when the program ended");
        assert!(output.status.code() == Some(3) && said.contains(&words), "{part}: {said}");
        assert!(!said.contains("was called") && said.contains("0 distinct faults"), "{part}: {said}");
    }
}

/// What `printf("block %d\n", blockIdx.x)` compiles to, and a store that faults when it is asked for.
const PRINTS: &str = "
.version 8.7
.target sm_80
.address_size 64
.extern .func (.param .b32 func_retval0) vprintf (.param .b64 vprintf_param_0, .param .b64 vprintf_param_1);
.global .align 1 .b8 $str[10] = {98, 108, 111, 99, 107, 32, 37, 100, 10};
.visible .entry say(.param .u64 to) {
  .local .align 8 .b8 depot[8]; .reg .b32 %r<3>; .reg .b64 %rd<5>;
  mov.u64 %rd1, depot; cvta.local.u64 %rd2, %rd1; mov.u32 %r1, %ctaid.x; st.local.u32 [%rd1], %r1;
  mov.u64 %rd3, $str; cvta.global.u64 %rd4, %rd3;
  { .param .b64 a; st.param.b64 [a], %rd4; .param .b64 b; st.param.b64 [b], %rd2; .param .b32 r;
  call.uni (r), vprintf, (a, b); ld.param.b32 %r2, [r]; }
  ld.param.u64 %rd1, [to]; st.global.u32 [%rd1], %r2; ret; }";

/// Kernels that print between lines of the program's own, with a buffer of one line, and before a fault.
fn prints() {
    let context = CudaContext::new(0).expect("a device");
    let stream = context.default_stream();
    let text = std::ffi::CString::new(PRINTS).unwrap();
    // SAFETY: a text with its NUL, kernels with the arguments they take.
    unsafe {
        let module = result::module::load_data(text.as_ptr().cast()).unwrap();
        let say = result::module::get_function(module, c"say".into()).unwrap();
        let x = result::malloc_sync(4).unwrap();
        let fifo = sys::CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE;
        let mut bytes = 0;
        sys::cuCtxGetLimit(&mut bytes, fifo).result().unwrap();
        assert_eq!(bytes, 1 << 20);
        for (most, to, what) in [(bytes, x, "whole"), (10, x, "short"), (bytes, 8, "wrong")] {
            sys::cuCtxSetLimit(fifo, most).result().unwrap();
            sys::cuCtxGetLimit(&mut bytes, fifo).result().unwrap();
            assert_eq!(bytes, most);
            println!("{what}:");
            let mut args = [(&raw const to).cast_mut().cast()];
            let _ = result::launch_kernel(say, (3, 1, 1), (1, 1, 1), 0, stream.cu_stream(), &mut args);
            let _ = sys::cuCtxSynchronize();
            bytes = 1 << 20;
        }
    }
}

#[test]
fn what_kernels_print_stands_among_the_output_of_the_program() {
    let (output, said) = run(&["--check", "bounds"], "prints");
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let wanted = "whole:\nblock 0\nblock 1\nblock 2\nshort:\nblock 2\nwrong:\nblock 0\nblock 1\nblock 2\n";
    assert!(lines.contains(wanted), "{lines}\n{said}");
    assert!(output.status.code() == Some(1) && said.contains("1 distinct fault"), "{said}");
}

/// A launcher that runs a part of this program.
fn launcher(program: impl AsRef<OsStr>, options: &[&str], part: &str) -> Command {
    let mut command = Command::new(program);
    command.arg("run").args(options).arg("--");
    command.arg(std::env::current_exe().unwrap()).args(["child", "--exact", "--nocapture"]);
    command.env("LAUNCHED_PART", part);
    command
}

fn run(options: &[&str], part: &str) -> (Output, String) {
    ended(launcher(env!("CARGO_BIN_EXE_soft-cuda"), options, part))
}

fn ended(mut command: Command) -> (Output, String) {
    let output = command.output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    (output, said)
}

#[test]
fn a_right_program_ends_with_its_own_status() {
    let (output, said) = run(&["--schedule", "random7", "--check", "races,bounds,init"], "right");
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("3 launches of 1 kernels without a fault") && said.contains("0 distinct faults"),
        "{said}"
    );
}

#[test]
fn a_wrong_program_goes_on_and_every_distinct_fault_is_reported_once() {
    let (output, said) = run(&[], "wrong");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the program saw CUDA_SUCCESS") && said.contains("3 distinct faults"), "{said}");
    for (number, kind, text) in
        [(1, "Uninitialised", "ld.global"), (2, "OutOfBounds", "ld.global"), (3, "OutOfBounds", "st.global")]
    {
        let line =
            said.lines().find(|l| l.starts_with(&format!("soft-cuda: {number}. "))).expect("in the summary");
        assert!(line.contains(kind) && line.contains(text), "{line}");
    }
    // As on a GPU: the context is spoilt.
    let (output, said) = run(&["--stop", "--check", "bounds"], "wrong");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the program saw CUDA_ERROR_ILLEGAL_ADDRESS"), "{said}");
}

/// Where nvJitLink is found, numba compiles to what it cannot link: it is there when it is asked for.
#[test]
fn nvjitlink_is_there_when_it_is_asked_for() {
    let (_, said) = run(&["--nvjitlink"], "links");
    assert!(said.contains("nvJitLink 13.0"), "{said}");
    let (_, said) = run(&[], "links");
    assert!(!said.contains("nvJitLink 13.0"), "{said}");
}

#[test]
fn a_program_without_cuda_and_wrong_options_are_no_success() {
    let (output, said) = run(&[], "nothing");
    assert!(output.status.code() == Some(3) && said.contains("nothing was checked"), "{said}");
    for (options, word) in [
        (&["--schedule", "sideways"][..], "sideways"),
        (&["--fast"], "--fast"),
        (&["--check", "speed"], "speed"),
    ] {
        let (output, said) = run(options, "right");
        assert!(output.status.code() == Some(2) && said.contains(word), "{said}");
    }
}

#[test]
fn the_assembler_passes_ptx_on() {
    let folder = std::env::temp_dir().join(format!("soft-cuda-test-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let ptxas = folder.join("ptxas");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_soft-cuda"), &ptxas).unwrap();
    let version = Command::new(&ptxas).arg("--version").output().unwrap();
    assert!(String::from_utf8_lossy(&version.stdout).contains("release 12."));
    let (good, bad, out) = (folder.join("a.ptx"), folder.join("b.ptx"), folder.join("a.cubin"));
    std::fs::write(&good, KERNELS).unwrap();
    std::fs::write(&bad, KERNELS.replace("mul.f32", "mul.f77")).unwrap();
    let assemble = |from: &std::path::Path| {
        let words = ["-lineinfo", "-v", "--gpu-name=sm_90a"];
        Command::new(&ptxas).args(words).arg(from).arg("-o").arg(&out).output().unwrap()
    };
    let refused = assemble(&bad);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("mul.f77"));
    assert!(!out.exists() && assemble(&good).status.success());
    assert_eq!(std::fs::read_to_string(&out).unwrap(), KERNELS);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A folder of a test's own, gone with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("soft-cuda-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    fn entries(&self) -> Vec<PathBuf> {
        std::fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().path()).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The launcher is stopped while the program runs: so is the program, and what was found is reported.
#[test]
fn a_signal_ends_the_program_and_the_summary_comes() {
    let scratch = Scratch::new("signal");
    let mut command = launcher(env!("CARGO_BIN_EXE_soft-cuda"), &[], "waits");
    command.env("TMPDIR", &scratch.0).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = command.spawn().unwrap();
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("waiting")));
    assert_eq!(scratch.entries().len(), 1, "the run has its folder");
    let killed = Command::new("kill").args(["-TERM", &running.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let output = running.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(128 + 15), "{said}");
    assert!(said.contains("signal 15 has ended the program"), "{said}");
    assert!(said.contains("was not counted; 3 distinct faults") && said.contains("soft-cuda: 3. "), "{said}");
    assert_eq!(scratch.entries(), Vec::<PathBuf>::new(), "nothing is left");
    // A program that ends in its own way has its own status.
    let mut command = Command::new(env!("CARGO_BIN_EXE_soft-cuda"));
    command.args(["run", "--", "sh", "-c", "trap 'exit 7' TERM; echo waiting; while :; do sleep 0.1; done"]);
    let mut running = command.stdout(Stdio::piped()).spawn().unwrap();
    assert!(
        BufReader::new(running.stdout.take().unwrap()).lines().any(|line| line.unwrap().contains("waiting"))
    );
    Command::new("kill").args(["-TERM", &running.id().to_string()]).status().unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(7));
}

/// The number of a process comes again: what another run has left is in no way of this one.
#[test]
fn what_a_killed_run_has_left_is_no_obstacle() {
    let scratch = Scratch::new("left");
    let script = "mkdir \"$TMPDIR/soft-cuda-$$\" && exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_soft-cuda"), "run", "--", "true"]);
    let (output, said) = {
        command.env("TMPDIR", &scratch.0);
        ended(command)
    };
    assert!(output.status.code() == Some(3) && said.contains("has not started the driver"), "{said}");
}

/// As programs are installed: `bin` and `lib`, or a library that a variable names.
#[test]
fn an_installed_launcher_finds_its_library() {
    let scratch = Scratch::new("installed");
    let (bin, lib) = (scratch.0.join("bin"), scratch.0.join("lib"));
    std::fs::create_dir(&bin).unwrap();
    let program = bin.join("soft-cuda");
    std::fs::copy(env!("CARGO_BIN_EXE_soft-cuda"), &program).unwrap();
    let library = soft_cuda::preload::locate().unwrap();
    let (output, said) = ended(launcher(&program, &[], "right"));
    assert!(output.status.code() == Some(2) && said.contains("SOFT_CUDA_LIBRARY"), "{said}");
    let mut named = launcher(&program, &[], "right");
    named.env("SOFT_CUDA_LIBRARY", &library);
    let (output, said) = ended(named);
    assert!(output.status.code() == Some(0) && said.contains("0 distinct faults"), "{said}");
    let mut wrong = launcher(&program, &[], "right");
    wrong.env("SOFT_CUDA_LIBRARY", scratch.0.join("nothing.so"));
    let (output, said) = ended(wrong);
    assert!(output.status.code() == Some(2) && said.contains("nothing.so"), "{said}");
    std::fs::create_dir(&lib).unwrap();
    std::fs::copy(&library, lib.join("libsoft_cuda.so")).unwrap();
    // An older one that a build has left is not it.
    let stale = std::fs::File::create(bin.join("libsoft_cuda.so")).unwrap();
    stale.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let (output, said) = ended(launcher(&program, &[], "right"));
    assert!(output.status.code() == Some(0) && said.contains("0 distinct faults"), "{said}");
}
