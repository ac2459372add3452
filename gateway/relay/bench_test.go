package relay

import (
	"testing"
)

// BenchmarkEvent is the work on one chunk of a stream, without reading and writing it: no allocation.
func BenchmarkEvent(b *testing.B) {
	event := []byte("data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"finish_reason\":null}]}\n\n")
	for name, model := range map[string]string{"as it is": "m", "with another name": "asked"} {
		b.Run(name, func(b *testing.B) {
			s := sse{call: &Call{Operation: chat, Model: model}, asked: []byte(`"model":"` + model + `"`)}
			b.ReportAllocs()
			for b.Loop() {
				s.read(event[:boundary(event, 0)])
			}
		})
	}
}

// TestEvent_CostsNoMemory: chunks are passed on as they are, and what changes in them is written into one buffer.
func TestEvent_CostsNoMemory(t *testing.T) {
	event := []byte("data: {\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"}}]}\n\n")
	for model, most := range map[string]float64{"m": 0, "asked": 4} {
		s := sse{call: &Call{Operation: chat, Model: model}, asked: []byte(`"model":"` + model + `"`)}
		if got := testing.AllocsPerRun(100, func() { s.read(event[:boundary(event, 0)]) }); got > most {
			t.Errorf("as %q: %v allocations a chunk, want at most %v", model, got, most)
		}
	}
}
