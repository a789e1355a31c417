//! client ADDRESS DOMAIN DESCRIPTOR...: asks the service once. A descriptor is written as
//! user=alice,path=/search. The exit status is 0 if the request may go on, 1 if it may not, and 2 if
//! nobody answered.
use std::process::ExitCode;
use std::time::Duration;

use proto::extensions::common::ratelimit::v3::{rate_limit_descriptor::Entry, RateLimitDescriptor};
use proto::service::ratelimit::v3::rate_limit_response::Code;
use proto::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use proto::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

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

const DEADLINE: Duration = Duration::from_secs(1);

fn descriptor(text: &str) -> RateLimitDescriptor {
    let entries = text.split(',').map(|each| {
        let (key, value) = each.split_once('=').unwrap_or((each, ""));
        Entry { key: key.into(), value: value.into() }
    });
    RateLimitDescriptor { entries: entries.collect(), ..Default::default() }
}

async fn ask(
    address: &str,
    domain: &str,
    texts: &[String],
) -> Result<RateLimitResponse, Box<dyn std::error::Error>> {
    // One client is enough for a program: it can be cloned.
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"))?
        .connect_timeout(DEADLINE);
    let mut client = RateLimitServiceClient::new(endpoint.connect().await?);
    let mut request = tonic::Request::new(RateLimitRequest {
        domain: domain.into(),
        descriptors: texts.iter().map(|text| descriptor(text)).collect(),
        hits_addend: 0,
    });
    request.set_timeout(DEADLINE);
    Ok(client.should_rate_limit(request).await?.into_inner())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, domain, texts @ ..] = arguments.as_slice() else {
        eprintln!("client ADDRESS DOMAIN DESCRIPTOR...");
        return ExitCode::from(2);
    };
    let answer = match ask(address, domain, texts).await {
        Ok(answer) => answer,
        Err(error) => {
            // Here you decide: let it pass, or deny it.
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    for (status, text) in answer.statuses.iter().zip(texts) {
        let code = status.code().as_str_name();
        let Some(limit) = &status.current_limit else {
            println!("{code} {text} no limit");
            continue;
        };
        let over = status.code() == Code::OverLimit;
        let wait = if over { "come back in" } else { "resets in" };
        println!(
            "{code} {text} {} of {} left, {wait} {} s",
            status.limit_remaining,
            limit.requests_per_unit,
            status.duration_until_reset.map_or(0, |duration| duration.seconds),
        );
    }
    ExitCode::from(u8::from(answer.overall_code() == Code::OverLimit))
}
