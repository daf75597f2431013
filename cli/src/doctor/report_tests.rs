//! What a report makes of the lines of a device's process.

#![allow(clippy::unwrap_used)]

use super::*;

fn ended(lines: &[Value], end: End) -> Value {
    let listed = json!({"device": "wgpu#0", "backend": "wgpu", "listed": {"name": "x"}});
    assembled(listed, Said { lines: lines.to_vec(), end }, &all(), Duration::from_secs(1))
}

/// The opening of a device, its first class timed, its second one begun.
fn begun() -> Vec<Value> {
    let classes = all();
    vec![
        json!({"begins": "opening the device"}),
        json!({"opened": {"probes": []}}),
        json!({"measured": {"read_gb_per_second": 1.0}}),
        json!({"begins": classes[0].name}),
        json!({"timing": entry(&classes[0], "timed", json!({"seconds": 1.0}))}),
        json!({"begins": classes[1].name}),
    ]
}

#[test]
fn what_a_process_did_not_come_to_is_listed_with_its_reason() {
    let classes = all();
    for (end, second, later) in [
        (
            End::Broken("it ended: signal 11".into()),
            ("failed", "it ended: signal 11"),
            "the device failed before",
        ),
        (End::OutOfTime, ("not run", "out of time while it ran"), OUT_OF_TIME),
    ] {
        let device = ended(&begun(), end);
        let timings = device["timings"].as_array().unwrap();
        assert_eq!(timings.len(), classes.len());
        let of = |at: usize| (timings[at]["outcome"].as_str().unwrap(), timings[at]["error"].as_str());
        assert_eq!(of(0), ("timed", None));
        assert_eq!(of(1), (second.0, Some(second.1)));
        assert_eq!(of(2), ("not run", Some(later)));
        let error = device["error"].as_str().unwrap();
        assert!(error.ends_with(&format!("its last act was: {}", classes[1].name)), "{error}");
        assert_eq!(device["measured"]["read_gb_per_second"], 1.0);
        assert_eq!((device["device"].as_str(), device["seconds"].as_f64()), (Some("wgpu#0"), Some(1.0)));
    }
    // The device could not be opened.
    let device = ended(&[json!({"begins": "opening the device"}), json!({"failed": "no"})], End::Done);
    assert_eq!((device["error"].as_str(), device["opened"].is_null()), (Some("no"), true));
    assert_eq!(device["measured"]["error"], "no");
    assert!(device["timings"].as_array().unwrap().iter().all(|t| t["error"] == "the device failed before"));
    assert!(summary(&device).ends_with("; no"), "{}", summary(&device));
}

/// A driver that hangs or crashes while kernels are compared costs that probe alone.
#[test]
fn a_comparison_of_kernels_that_does_not_end_costs_nothing_else() {
    let with = |lines: &[Value], end| {
        let opened =
            json!({"opened": {"probes": [{"name": "division"}], "promises": {"fast": {"kept": true}}}});
        let device = ended(&[&[opened], lines].concat(), end);
        assert_eq!(device["opened"]["promises"]["fast"]["kept"], true);
        let probes = device["opened"]["probes"].as_array().unwrap().clone();
        assert_eq!((probes.len(), probes[0]["name"].as_str()), (2, Some("division")));
        let kernels = &probes[1];
        assert_eq!(kernels["name"], "kernels");
        let of = |field: &str| kernels[field].as_str().unwrap().to_string();
        (of("outcome"), of("found"), device["timings"].clone())
    };
    let classes = all();
    let timed: Vec<Value> = classes
        .iter()
        .map(|class| json!({"timing": entry(class, "timed", json!({"seconds": 1.0}))}))
        .chain([json!({"begins": COMPARING})])
        .collect();
    let crash = || End::Broken("it ended: signal 11".into());
    for (end, want) in [
        (End::OutOfTime, ("not run", "out of time while it ran")),
        (crash(), ("failed", "it ended: signal 11")),
    ] {
        let (outcome, found, timings) = with(&timed, end);
        assert_eq!((outcome.as_str(), found.as_str()), want);
        assert!(timings.as_array().unwrap().iter().all(|timing| timing["outcome"] == "timed"));
    }
    let said = of_kernels("passed", "12 give the bits of plainer ones");
    let (outcome, found, _) = with(&[json!({"kernels": said})], End::Done);
    assert_eq!((outcome.as_str(), found.as_str()), ("passed", "12 give the bits of plainer ones"));
    assert_eq!(with(&[], End::OutOfTime).1, OUT_OF_TIME);
    assert_eq!(with(&[json!({"begins": "opening"})], crash()).0, "not run");
    // A device whose kernels have nothing to be compared with has no such probe.
    assert_eq!(ended(&begun(), End::OutOfTime)["opened"]["probes"], json!([]));
}

#[test]
fn backends_without_a_device_are_listed_with_their_reason() {
    let without = json!({"backend": "cuda", "error": "no driver"});
    let lines = vec![
        json!({"device": {"device": "cuda#0", "backend": "cuda", "listed": {}}}),
        json!({"without": without}),
        json!({"end": true}),
    ];
    let (devices, missing) = found("cuda", Said { lines, end: End::Done });
    assert_eq!((devices.len(), missing), (1, vec![without]));
    let broken = End::Broken("it ended: signal 11".into());
    let (devices, missing) = found("wgpu", Said { lines: Vec::new(), end: broken });
    assert_eq!((devices.len(), missing[0]["backend"].as_str()), (0, Some("wgpu")));
    let error = missing[0]["error"].as_str().unwrap();
    assert!(error.contains("listed") && error.contains("signal 11"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_driver_that_hangs_or_crashes_hides_its_own_devices_alone() {
    let began = Instant::now();
    let device =
        |name: &str| format!("echo '{{\"device\": {{\"backend\": \"{name}\"}}}}'; echo '{{\"end\": true}}'");
    for (cuda, want) in [("exec sleep 100", OUT_OF_TIME), ("kill -SEGV $$", "signal")] {
        let (devices, missing) = listed(Instant::now() + Duration::from_secs(8), |backend, _| {
            let script = if backend == "cuda" { cuda.to_string() } else { device(backend) };
            let mut command = Command::new("sh");
            command.args(["-c", &script]);
            command
        });
        let there: Vec<&str> = devices.iter().filter_map(|device| device["backend"].as_str()).collect();
        assert_eq!(there, ["cpu", "wgpu"]);
        assert_eq!((missing.len(), missing[0]["backend"].as_str()), (1, Some("cuda")));
        let error = missing[0]["error"].as_str().unwrap();
        assert!(error.contains(want), "{error}");
    }
    assert!(began.elapsed() < Duration::from_secs(50), "{:?}", began.elapsed());
}

/// A driver that ends every process that lists leaves the CPU.
#[cfg(unix)]
#[test]
fn the_cpu_is_there_whatever_happens() {
    let (devices, missing) = listed(Instant::now() + Duration::from_secs(20), |_, _| Command::new("false"));
    assert_eq!(devices.len(), usize::from(BackendName::Cpu.compiled_in()));
    assert_eq!(missing.len(), BACKENDS.len());
}
