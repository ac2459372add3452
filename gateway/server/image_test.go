package server

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// imageBody is a chat with a picture of two megabytes in it.
func imageBody() []byte {
	picture := make([]byte, 1_500_000)
	for i := range picture {
		picture[i] = byte(rand.Uint32())
	}
	return fmt.Appendf(nil, `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"what is this"},{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}]}]}`,
		base64.StdEncoding.EncodeToString(picture))
}

// sink is a backend that reads what it is sent without keeping it, and answers with its hash.
func sink(tb testing.TB) string {
	tb.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		io.Copy(sum, r.Body) //nolint:errcheck // the hash tells
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1},"sum":"%x"}`, sum.Sum(nil)) //nolint:errcheck // a test server
	}))
	tb.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func (b *bench) image(url string, body []byte) string {
	b.tb.Helper()
	resp, err := http.Post(url+chat, "application/json", bytes.NewReader(body))
	if err != nil {
		b.tb.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		b.tb.Fatalf("%d %v %s", resp.StatusCode, err, answer)
	}
	return string(answer)
}

// P80: a picture in a prompt passes as it is, and costs what reading it into memory costs: no copy of it is decoded,
// encoded or kept besides. BenchmarkP80 measures the time.
func TestP80_PicturesAreReadOnce(t *testing.T) { // not parallel: it counts what is allocated
	b := setUp(t, of{addrs: []string{sink(t)}})
	body := imageBody()
	want := fmt.Sprintf("%x", sha256.Sum256(body))
	const n = 10
	var before, after runtime.MemStats
	for i := range 2 * n {
		if i == n { // warm
			runtime.ReadMemStats(&before)
		}
		if answer := b.image(b.url, body); !strings.Contains(answer, want) {
			t.Fatalf("the picture was changed: %s", answer)
		}
	}
	runtime.ReadMemStats(&after)
	if times := float64(after.TotalAlloc-before.TotalAlloc) / float64(n*len(body)); times > 4 {
		t.Errorf("%.1f times the body was allocated for each request", times)
	}
}

// BenchmarkP80 tells by how much the gateway's median is over that of the backend itself; at most 5 ms are wanted.
func BenchmarkP80(b *testing.B) {
	to := sink(b)
	g := setUp(b, of{addrs: []string{to}})
	body := imageBody()
	var direct, through []time.Duration
	for b.Loop() {
		for _, way := range []struct {
			url  string
			took *[]time.Duration
		}{{"http://" + to, &direct}, {g.url, &through}} {
			began := time.Now()
			g.image(way.url, body)
			*way.took = append(*way.took, time.Since(began))
		}
	}
	median := func(list []time.Duration) float64 {
		slices.Sort(list)
		return float64(list[len(list)/2].Microseconds()) / 1000
	}
	b.ReportMetric(median(through)-median(direct), "added-p50-ms")
	b.ReportMetric(median(direct), "direct-p50-ms")
}
