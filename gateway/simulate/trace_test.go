package simulate

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"
)

const blockTokens = 512

// request is one line of a trace.
type request struct {
	at      time.Duration
	input   int
	output  int
	blocks  []uint64 // whole ones
	session int      // requests of one conversation have one number
	turn    int      // from 0
}

// trace reads a trace and finds its sessions: a request that contains the last whole block of an earlier one, which
// stands for all of that prompt, is its next turn.
func trace(t testing.TB, name string) []request {
	t.Helper()
	file, err := os.Open("testdata/mooncake_" + name + ".jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	plain, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	var list []request
	ended := map[uint64]int{} // index of the request by its last block
	sessions := 0
	lines := bufio.NewScanner(plain)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			Timestamp    int64    `json:"timestamp"`
			InputLength  int      `json:"input_length"`
			OutputLength int      `json:"output_length"`
			HashIDs      []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		r := request{at: time.Duration(line.Timestamp) * time.Millisecond, input: line.InputLength, output: line.OutputLength, session: -1}
		r.blocks = line.HashIDs[:min(len(line.HashIDs), line.InputLength/blockTokens)]
		for i := len(r.blocks) - 1; i > 0; i-- { // block 0 is common to all
			if earlier, ok := ended[r.blocks[i]]; ok {
				r.session, r.turn = list[earlier].session, list[earlier].turn+1
				break
			}
		}
		if r.session < 0 {
			r.session = sessions
			sessions++
		}
		if n := len(r.blocks); n > 1 {
			ended[r.blocks[n-1]] = len(list)
		}
		list = append(list, r)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return list
}

func TestTrace(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"conversation": "12031 requests, 8056 sessions, 3975 follow-ups, 38.2 % of blocks seen before",
		"synthetic":    "3993 requests, 2549 sessions, 1444 follow-ups, 65.9 % of blocks seen before",
	} {
		list := trace(t, name)
		sessions, follow, blocks, hits := map[int]bool{}, 0, 0, 0
		seen := map[uint64]bool{}
		for _, r := range list {
			sessions[r.session] = true
			if r.turn > 0 {
				follow++
			}
			for _, b := range r.blocks {
				blocks++
				if seen[b] {
					hits++
				}
				seen[b] = true
			}
		}
		got := fmt.Sprintf("%d requests, %d sessions, %d follow-ups, %.1f %% of blocks seen before", len(list), len(sessions), follow, 100*float64(hits)/float64(blocks))
		if got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}
