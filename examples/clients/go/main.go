// client ADDRESS DOMAIN DESCRIPTOR...: asks the service once. A descriptor is written as
// user=alice,path=/search. The exit status is 0 if the request may go on, 1 if it may not, and 2 if
// nobody answered.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const deadline = time.Second

func descriptor(text string) *common.RateLimitDescriptor {
	found := &common.RateLimitDescriptor{}
	for _, each := range strings.Split(text, ",") {
		key, value, _ := strings.Cut(each, "=")
		entry := &common.RateLimitDescriptor_Entry{Key: key, Value: value}
		found.Entries = append(found.Entries, entry)
	}
	return found
}

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "client ADDRESS DOMAIN DESCRIPTOR...")
		os.Exit(2)
	}
	// One connection is enough for a program. It is made with the first call.
	connection, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	client := ratelimit.NewRateLimitServiceClient(connection)
	request := &ratelimit.RateLimitRequest{Domain: os.Args[2]}
	for _, text := range os.Args[3:] {
		request.Descriptors = append(request.Descriptors, descriptor(text))
	}

	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	answer, err := client.ShouldRateLimit(ctx, request)
	if err != nil { // here you decide: let it pass, or deny it
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}

	for place, status := range answer.Statuses {
		limit := status.CurrentLimit
		if limit == nil {
			fmt.Printf("%s %s no limit\n", status.Code, os.Args[3+place])
			continue
		}
		wait := "resets in"
		if status.Code == ratelimit.RateLimitResponse_OVER_LIMIT {
			wait = "come back in"
		}
		fmt.Printf("%s %s %d of %d left, %s %d s\n", status.Code, os.Args[3+place],
			status.LimitRemaining, limit.RequestsPerUnit, wait, status.DurationUntilReset.GetSeconds())
	}
	if answer.OverallCode == ratelimit.RateLimitResponse_OVER_LIMIT {
		os.Exit(1)
	}
}
