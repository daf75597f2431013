//! A server of one's own: the demo model behind HTTP until a signal comes.
//!
//! `cargo run --release -p engraft-server --example serve_demo [PORT]`

use engraft::{ModelSource, Options};
use engraft_server::{Server, ServerConfig};

fn main() -> engraft::Result<()> {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok()).unwrap_or(0);
    let config = ServerConfig {
        port,
        served_model_name: vec!["demo".into()],
        // The demo model only continues text: the last message is what it continues.
        chat_template: Some("{{ bos_token }}{{ messages[-1]['content'] }}".into()),
        ..ServerConfig::default()
    };
    let seqs = config.max_num_seqs;
    // Called again when the engine is lost.
    let load = move || Options::new().max_seqs(seqs).open(ModelSource::Demo);
    let server = Server::bind(config, load)?;
    eprintln!("demo answers at {}/v1 (Ctrl-C to end)", server.address());
    server.run_until_signal()?;
    Ok(())
}
