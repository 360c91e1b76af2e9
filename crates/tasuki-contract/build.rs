//! Turns the schemas in `proto/` into types, without a `protoc` on the machine.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let proto = PathBuf::from("../../proto");
    println!("cargo::rerun-if-changed={}", proto.display());
    let files = ["community", "entitlement", "matchmaking", "shop"]
        .map(|name| proto.join(format!("tasuki/{name}/v1/{name}.proto")));
    let descriptors = protox::compile(&files, [&proto])?;
    prost_build::Config::new().compile_fds(descriptors)?;
    Ok(())
}
