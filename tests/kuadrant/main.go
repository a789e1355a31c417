// kuadrant ADDRESS: makes calls as Kuadrant's gateways do, with code that is generated from their
// protocol. Each line of its input is a list of calls to be made at the same time,
// [["Reserve", {"domain": "llm", "amount": 800}], …]. Each line of its output has their answers in the
// same order; of a call that failed its status.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"log"
	"os"
	"sync"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	kuadrant "ratelimit_service/tests/kuadrant/v1"
)

// The code is generated anew in v1/ by protoc with protoc-gen-go, and ../../proto for what is imported:
//
//go:generate sh generate.sh

const (
	deadline    = 30 * time.Second
	longestLine = 1 << 20
)

// What a method takes and what it answers.
func messages(method string) (proto.Message, proto.Message) {
	switch method {
	case "Reserve":
		return &kuadrant.ReserveRequest{}, &kuadrant.ReserveResponse{}
	case "Commit":
		return &kuadrant.CommitRequest{}, &kuadrant.CommitResponse{}
	default:
		return &ratelimit.RateLimitRequest{}, &ratelimit.RateLimitResponse{}
	}
}

func call(connection *grpc.ClientConn, words [2]json.RawMessage) json.RawMessage {
	var method string
	must(json.Unmarshal(words[0], &method))
	request, answer := messages(method)
	must(protojson.Unmarshal(words[1], request))
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	path := "/kuadrant.service.ratelimit.v1.RateLimitService/" + method
	if err := connection.Invoke(ctx, path, request, answer); err != nil {
		said, err := json.Marshal(map[string]string{"status": status.Code(err).String()})
		must(err)
		return said
	}
	said, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(answer)
	must(err)
	return said
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	connection, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(err)
	output := json.NewEncoder(os.Stdout)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, longestLine)
	for lines.Scan() {
		var calls [][2]json.RawMessage
		must(json.Unmarshal(lines.Bytes(), &calls))
		answers := make([]json.RawMessage, len(calls))
		var all sync.WaitGroup
		for place, each := range calls {
			all.Add(1)
			go func() {
				defer all.Done()
				answers[place] = call(connection, each)
			}()
		}
		all.Wait()
		must(output.Encode(answers))
	}
	must(lines.Err())
}
