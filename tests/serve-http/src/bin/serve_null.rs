//! `serve-null [--idle] [--context N] [--seqs N] [--faults OPS] [--seed N] [--wait MS] [--drain MS] [--write
//! MS]`: a server whose model computes nothing, for what the server itself takes, and for what it does when
//! engines fail.
//!
//! Tokens are a function of the prompt (`null-backend`), or with `--idle` what lies in memory. With
//! `--faults` the engine fails behind some so many ops, over and over: by errors of steps, panics, lost
//! devices. `--wait` is what a read of tokens takes. The address is the first line of standard output, the
//! number of failures the last; what
//! the engine's failures cost is short here, and clients have two seconds for heads and bodies.

use engraft::EngineConfig;
use engraft_server::{Server, ServerConfig};
use null_backend::Null;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Time for a head or a body.
const QUICK: Duration = Duration::from_secs(2);

/// What the command line says.
struct Said {
    idle: bool,
    context: usize,
    seqs: usize,
    faults: usize,
    seed: u64,
    wait: u64,
    drain: u64,
    write: u64,
}

fn said() -> Result<Said, String> {
    let mut said = Said {
        idle: false,
        context: 256,
        seqs: 8,
        faults: 0,
        seed: 1,
        wait: 0,
        drain: 30_000,
        write: 30_000,
    };
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        if flag == "--idle" {
            said.idle = true;
            continue;
        }
        let value = args.next().unwrap_or_default();
        let number: u64 = value.parse().map_err(|_| format!("{flag} is {value:?}; allowed: a number"))?;
        match flag.as_str() {
            "--context" => said.context = number as usize,
            "--seqs" => said.seqs = number as usize,
            "--faults" => said.faults = number as usize,
            "--seed" => said.seed = number,
            "--wait" => said.wait = number,
            "--drain" => said.drain = number,
            "--write" => said.write = number,
            _ => return Err(format!("{flag} is no flag")),
        }
    }
    Ok(said)
}

fn run() -> Result<(), String> {
    let said = said()?;
    let (engines, seqs, drain) = (AtomicU64::new(said.seed), said.seqs, said.drain);
    let config = ServerConfig {
        port: 0,
        served_model_name: vec!["null".into()],
        chat_template: Some("{{ messages[-1]['content'] }}".into()),
        max_num_seqs: seqs,
        max_queued: 4096,
        header_timeout: QUICK,
        body_timeout: QUICK,
        restart_backoff: Duration::from_millis(5),
        drain_timeout: Duration::from_millis(drain),
        write_timeout: Duration::from_millis(said.write),
        ..ServerConfig::default()
    };
    let load = move || {
        let null = if said.idle { Null::idle() } else { Null::new() };
        null.wait_for(Duration::from_millis(said.wait));
        let (max_context, max_seqs) = (said.context, said.seqs);
        let engine = EngineConfig { max_context, max_seqs, page_size: 8, ..EngineConfig::default() };
        let model = serve_http::over(&null, engine)?.0;
        if said.faults > 0 {
            serve_http::keep_failing(&null, said.faults, engines.fetch_add(1, Relaxed));
        }
        Ok(model)
    };
    let server = Server::bind(config, load).map_err(|error| error.to_string())?;
    println!("{}", server.address());
    match server.run_until_signal() {
        Ok(true) => {
            println!("{}", serve_http::failures());
            Ok(())
        }
        Ok(false) => Err("a second signal".into()),
        Err(error) => Err(error.to_string()),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("{what}");
            ExitCode::FAILURE
        }
    }
}
