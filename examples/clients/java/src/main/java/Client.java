import envoy.extensions.common.ratelimit.v3.Ratelimit.RateLimitDescriptor;
import envoy.service.ratelimit.v3.RateLimitServiceGrpc;
import envoy.service.ratelimit.v3.Rls.RateLimitRequest;
import envoy.service.ratelimit.v3.Rls.RateLimitResponse;
import envoy.service.ratelimit.v3.Rls.RateLimitResponse.Code;
import envoy.service.ratelimit.v3.Rls.RateLimitResponse.DescriptorStatus;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.StatusRuntimeException;
import java.util.concurrent.TimeUnit;

/**
 * Client ADDRESS DOMAIN DESCRIPTOR...: asks the service once. A descriptor is written as
 * user=alice,path=/search. The exit status is 0 if the request may go on, 1 if it may not, and 2 if
 * nobody answered.
 */
public final class Client {
  /** A Java program that has just started is slow. One that serves needs far less. */
  private static final int DEADLINE_MS = 5_000;

  private static RateLimitDescriptor descriptor(String text) {
    RateLimitDescriptor.Builder found = RateLimitDescriptor.newBuilder();
    for (String each : text.split(",")) {
      String[] parts = each.split("=", 2);
      found.addEntriesBuilder().setKey(parts[0]).setValue(parts.length > 1 ? parts[1] : "");
    }
    return found.build();
  }

  private static int ask(ManagedChannel channel, String[] arguments) {
    RateLimitRequest.Builder request = RateLimitRequest.newBuilder().setDomain(arguments[1]);
    for (int place = 2; place < arguments.length; place++) {
      request.addDescriptors(descriptor(arguments[place]));
    }
    RateLimitResponse answer;
    try {
      answer =
          RateLimitServiceGrpc.newBlockingStub(channel)
              .withDeadlineAfter(DEADLINE_MS, TimeUnit.MILLISECONDS)
              .shouldRateLimit(request.build());
    } catch (StatusRuntimeException error) {
      // Here you decide: let it pass, or deny it.
      System.err.println(error.getMessage());
      return 2;
    }
    for (int place = 0; place < answer.getStatusesCount(); place++) {
      DescriptorStatus status = answer.getStatuses(place);
      String said = status.getCode() + " " + arguments[2 + place];
      if (!status.hasCurrentLimit()) {
        System.out.println(said + " no limit");
        continue;
      }
      String wait = status.getCode() == Code.OVER_LIMIT ? "come back in" : "resets in";
      System.out.printf(
          "%s %d of %d left, %s %d s%n",
          said,
          status.getLimitRemaining(),
          status.getCurrentLimit().getRequestsPerUnit(),
          wait,
          status.getDurationUntilReset().getSeconds());
    }
    return answer.getOverallCode() == Code.OVER_LIMIT ? 1 : 0;
  }

  public static void main(String[] arguments) {
    if (arguments.length < 3) {
      System.err.println("Client ADDRESS DOMAIN DESCRIPTOR...");
      System.exit(2);
    }
    // One channel is enough for a program.
    ManagedChannel channel = ManagedChannelBuilder.forTarget(arguments[0]).usePlaintext().build();
    int status = ask(channel, arguments);
    channel.shutdownNow();
    System.exit(status);
  }
}
