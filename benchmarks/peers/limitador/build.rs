//! Makes the server of the .proto files. protox reads them, so that no protoc is needed.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = protox::compile(["envoy/service/ratelimit/v3/rls.proto"], ["../../../proto"])?;
    tonic_prost_build::configure().build_client(false).compile_fds(files)?;
    Ok(())
}
