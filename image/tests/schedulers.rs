//! Schedulers against the reference's float64 results: every case of `tests/golden-image/schedulers`, every
//! run, every tensor.
#![allow(clippy::unwrap_used, clippy::panic)]

use image_goldens::{Case, cases, name, scheduler};

/// Cases and runs of the folder.
const CASES: usize = 49;
const RUNS: usize = 155;

#[test]
fn every_case_and_every_run() {
    let (mut count, mut runs, mut worst) = (0, 0, (0.0, String::new()));
    for folder in cases("schedulers").unwrap() {
        let case = name(&folder);
        let verdict = scheduler(&folder).unwrap_or_else(|e| panic!("{case}: {e}"));
        assert!(verdict.passes(), "{case} {}: {:.3} of the tolerance", verdict.tensor, verdict.worst);
        if verdict.worst > worst.0 {
            worst = (verdict.worst, format!("{case} {}", verdict.tensor));
        }
        runs += Case::open(&folder).unwrap().runs().len();
        count += 1;
    }
    println!("{count} cases, {runs} runs; worst {:.3} of the tolerance: {}", worst.0, worst.1);
    assert_eq!((count, runs), (CASES, RUNS));
}

/// Every run again, its pictures one by one: the same bits.
#[test]
fn a_batch_is_its_pictures() {
    for folder in cases("schedulers").unwrap() {
        let case = Case::open(&folder).unwrap();
        for run in case.runs() {
            let all = case.pictures(&run, None).unwrap();
            let images = case.golden.get(&format!("{run}.in.noise")).unwrap().shape[0];
            let single: Vec<_> = (0..images).map(|image| case.pictures(&run, Some(image)).unwrap()).collect();
            for (step, batch) in all.iter().enumerate() {
                let parts: Vec<f32> = single.iter().flat_map(|steps| steps[step].clone()).collect();
                let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(batch), bits(&parts), "{} {run} step {step}", name(&folder));
            }
        }
    }
}
