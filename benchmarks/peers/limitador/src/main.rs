//! Limitador's crate behind Envoy's protocol, with counters in memory: for `python -m benchmarks.peers`.
//!
//! `limitador-server` is in no registry, so this stands for it: tonic takes the calls, and the
//! crate decides. What that server does beside (metrics, traces, headers) is left out.
//!
//! Arguments: HOST:PORT, and a file of limits as JSON.

use std::collections::HashMap;
use std::error::Error;

use limitador::limit::{Context, Limit};
use limitador::RateLimiter;
use proto::service::ratelimit::v3::rate_limit_response::Code;
use proto::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use proto::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::{Request, Response, Status};

/// What build.rs made; the modules stand as the packages do.
#[allow(dead_code)]
mod proto {
    pub mod config {
        pub mod core {
            pub mod v3 {
                tonic::include_proto!("envoy.config.core.v3");
            }
        }
    }
    pub mod extensions {
        pub mod common {
            pub mod ratelimit {
                pub mod v3 {
                    tonic::include_proto!("envoy.extensions.common.ratelimit.v3");
                }
            }
        }
    }
    pub mod service {
        pub mod ratelimit {
            pub mod v3 {
                tonic::include_proto!("envoy.service.ratelimit.v3");
            }
        }
    }
    pub mod r#type {
        pub mod v3 {
            tonic::include_proto!("envoy.r#type.v3");
        }
    }
}

const MOST_COUNTERS: u64 = 3_000_000;

struct Limiter(RateLimiter);

#[tonic::async_trait]
impl RateLimitService for Limiter {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let asked = request.into_inner();
        let descriptors: Vec<HashMap<String, String>> = asked
            .descriptors
            .into_iter()
            .map(|each| each.entries.into_iter().map(|one| (one.key, one.value)).collect())
            .collect();
        let mut context = Context::default();
        context.list_binding("descriptors".to_string(), descriptors);
        let hits = u64::from(asked.hits_addend.max(1));
        let found = self
            .0
            .check_rate_limited_and_update(&asked.domain.into(), &context, hits)
            .map_err(|error| Status::unavailable(error.to_string()))?;
        let code = if found.limited { Code::OverLimit } else { Code::Ok };
        Ok(Response::new(RateLimitResponse {
            overall_code: code.into(),
            ..Default::default()
        }))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let [address, limits] = &std::env::args().skip(1).collect::<Vec<_>>()[..] else {
        return Err("HOST:PORT and a file of limits are needed".into());
    };
    let limits: Vec<Limit> = serde_json::from_slice(&std::fs::read(limits)?)?;
    let limiter = RateLimiter::new(MOST_COUNTERS);
    limiter.configure_with(limits)?;
    tonic::transport::Server::builder()
        .add_service(RateLimitServiceServer::new(Limiter(limiter)))
        .serve(address.parse()?)
        .await?;
    Ok(())
}
