package brandtest

import (
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/device/detectortest"
)

// size is that of the hostile texts that parsers are measured on: as much as is kept of a tool's output.
const size = 1 << 20

// mostHeld bounds what a parser returns for a text of that size.
const mostHeld = size

// Frugal checks that a parser takes no more memory for 1 MiB of hostile text than is good for the node: everything recorded,
// over and over, with other numbers each time, with long lines, and forms without end. In passing it may allocate a
// small multiple of the text, most of which can be collected at once; what it returns is smaller than the text. No other test
// may run beside it: it counts what the process allocates.
func Frugal(t *testing.T, parse func(string) brand.Reading) {
	t.Helper()
	FrugalOn(t, recordings(t), 4, func(text string) any { return parse(text) })
}

// FrugalOn is Frugal for a parser of another kind and the texts that were recorded for it, by name. It may allocate so many
// times the text.
func FrugalOn(t *testing.T, recorded map[string]string, times uint64, parse func(string) any) {
	t.Helper()
	if raced {
		t.Skip("under the race detector pools forget at random, and what is allocated says nothing: run it without -race")
	}
	mostPassing := times * size
	for name, text := range hostile(recorded) {
		passing, held := uint64(0), uint64(0)
		for range 3 { // the runtime may allocate on its own account in between
			if passing, held = taken(text, parse); passing <= mostPassing && held <= mostHeld {
				break
			}
		}
		if passing > mostPassing || held > mostHeld {
			t.Errorf("1 MiB of %s: %d KiB allocated, want at most %d; %d KiB kept, want at most %d", name, passing>>10, mostPassing>>10, held>>10, mostHeld>>10)
		}
	}
}

// taken is how much a parser allocates for a text, and how much of it is in use once it has returned.
func taken(text string, parse func(string) any) (passing, held uint64) {
	var before, after, rest runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	result := parse(text)
	runtime.ReadMemStats(&after)
	runtime.GC()
	runtime.ReadMemStats(&rest)
	runtime.KeepAlive(result)
	runtime.KeepAlive(text)
	return after.TotalAlloc - before.TotalAlloc, max(rest.HeapAlloc, before.HeapAlloc) - before.HeapAlloc
}

// recordings are the recorded outputs in testdata, by name.
func recordings(t testing.TB) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "*.*"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Ext(file) != ".md" && len(body) > 0 {
			all[filepath.Base(file)] = string(body)
		}
	}
	if len(all) == 0 {
		t.Fatal("nothing is recorded in testdata")
	}
	return all
}

// hostile are texts of 1 MiB, made of what was recorded and of forms without end, and what they are.
func hostile(recorded map[string]string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, name := range slices.Sorted(maps.Keys(recorded)) {
			body := recorded[name] + "\n"
			for _, form := range []struct {
				what string
				copy func(int) string
			}{
				{name, func(int) string { return body }},
				{name + " with other numbers", func(i int) string { return renumbered(body, i) }},
				{name + " with every line long", func(int) string { return strings.ReplaceAll(body, "\n", strings.Repeat(" 0 [a 1", 200)+"\n") }},
			} {
				if !yield(form.what, endless(form.copy)) {
					return
				}
			}
		}
		for _, form := range []struct{ what, start, end, more string }{
			{"cards without end", "", "", "GPU[%d] : VRAM Total Memory (B): %d\n"},
			{"cards in JSON", `{"card0": {}`, "}", `, "card%d": {"Card Series": "%d"}`},
			{"fields of a card in JSON", `{"card0": {"a": 1`, "}}", `, "k%d": {"a": %d}`},
			{"lists in JSON", "[[]", "]", ", [[%d],[%d]]"},
			{"numbers in JSON", `{"gpu_data": [{"gpu": 0, "asic": {"a": 1}}`, "]}", ", %d, %d"},
			{"objects in JSON", `{"GPU": [{"Index": 0}`, "]}", `, {"Index": %d, "device_id": %[1]d, "gpu": %d}`},
			{"objects that lie in one another", "", "", `{"a%d": {"b%d": `},
			{"boards in XML", "<nvidia_smi_log>", "</nvidia_smi_log>", `<gpu id="00000000:%02X:00.0"><uuid>GPU-%d</uuid></gpu>`},
			{"tags in XML", "<nvidia_smi_log><gpu>", "</gpu></nvidia_smi_log>", "<a%d/><b%d/>"},
			{"processes in XML", `<nvidia_smi_log><gpu id="00000000:01:00.0"><processes>`, "</processes></gpu></nvidia_smi_log>", "<process_info><pid>%d</pid><a>%d</a></process_info>"},
			{"columns", "index", "\n0, 1\n", ", field%d.a%d"},
			{"cells", "| GPU  Name |\n", "|\n", "| %d %d "},
			{"lines of a header", "", "", "| GPU a%d | b%d |\n"},
			{"words", "GPU  Name\n", "\n", "%d  [a %d] "},
			{"titles", "", "", "a%d:\n  b%d:\n"},
			{"deep titles", "", "", "a%d\n b\n  c\n   d\n    e\n     f\n      g%d: h\n"},
			{"line ends", "", "", "\n\n\r\n\r\n\t \n"},
			{"quotes", "", "", `"",",""" "a" `},
			{"bars", "", "", "|-+|=| "},
		} {
			more := form.more
			body := func(i int) string {
				if !strings.Contains(more, "%") {
					return more
				}
				return fmt.Sprintf(more, i, i+1)
			}
			text := form.start + endless(body)
			if text = text[:size-len(form.end)]; form.end != "" { // cut behind a whole piece
				text = text[:strings.LastIndex(text, more[:strings.IndexByte(more, '%')])]
			}
			if !yield(form.what, text+form.end) {
				return
			}
		}
	}
}

// endless is 1 MiB of copies.
func endless(body func(i int) string) string {
	var text strings.Builder
	for i := 0; text.Len() < size; i++ {
		text.WriteString(body(i))
	}
	return text.String()[:size]
}

// renumbered is a text with every number of up to four digits greater by i, as wide as it was where that is enough.
func renumbered(text string, i int) string {
	out := make([]byte, 0, 2*len(text))
	for at := 0; at < len(text); {
		end := at
		for end < len(text) && text[end] >= '0' && text[end] <= '9' {
			end++
		}
		if end == at || end-at > 4 {
			end = max(end, at+1)
			out = append(out, text[at:end]...)
		} else if n, err := strconv.Atoi(text[at:end]); err == nil {
			greater := strconv.Itoa(n + i)
			out = append(append(out, "0000"[:max(0, end-at-len(greater))]...), greater...)
		}
		at = end
	}
	return string(out)
}

// Benchmark measures a parser on 1 MiB of hostile texts, see Frugal.
func Benchmark(b *testing.B, parse func(string) brand.Reading) {
	b.Helper()
	BenchmarkOn(b, recordings(b), func(text string) any { return parse(text) })
}

// BenchmarkOn is Benchmark for a parser of another kind. It reports the processor time of one call, that of the collection of
// what it leaves behind included; by how much the memory in use grew at most while it ran; and what it returns.
func BenchmarkOn(b *testing.B, recorded map[string]string, parse func(string) any) {
	b.Helper()
	for name, text := range hostile(recorded) {
		b.Run(name, func(b *testing.B) {
			_, held := taken(text, parse)
			highest := peak(text, parse)
			b.ReportAllocs()
			before := detectortest.ProcessorTime(b)
			for b.Loop() {
				parse(text)
			}
			b.ReportMetric(float64((detectortest.ProcessorTime(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
			b.ReportMetric(float64(highest), "peak-B")
			b.ReportMetric(float64(held), "held-B")
		})
	}
}

// peak is by how much the memory in use grows at most while a parser runs, found by collecting all the time. What is
// allocated during a collection counts as in use: it is an upper bound.
func peak(text string, parse func(string) any) uint64 {
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	runtime.GC()
	metrics.Read(live)
	start := live[0].Value.Uint64()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.KeepAlive(parse(text))
	}()
	for highest := start; ; {
		runtime.GC()
		metrics.Read(live)
		highest = max(highest, live[0].Value.Uint64())
		select {
		case <-done:
			return highest - start
		default:
		}
	}
}
