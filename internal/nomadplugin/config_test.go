package nomadplugin

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-msgpack/v2/codec"
)

type sampleConfig struct {
	Enabled *bool             `codec:"enabled"`
	Name    string            `codec:"name"`
	Small   int8              `codec:"small"`
	Big     uint64            `codec:"big"`
	Share   float64           `codec:"share"`
	Period  time.Duration     `codec:"period"`
	List    []string          `codec:"list"`
	Labels  map[string]string `codec:"labels"`
	Rules   []sampleRule      `codec:"rules"`
	One     *sampleRule       `codec:"one"`
	Free    any               `codec:"free"`
}

type sampleRule struct {
	Match string `codec:"match"`
	Count int64  `codec:"count"`
}

func TestDecodeConfig(t *testing.T) {
	t.Parallel()
	yes := true
	cases := map[string]struct {
		in   map[string]any
		want sampleConfig
	}{
		"an empty document leaves every field alone": {in: map[string]any{}, want: sampleConfig{Name: "kept"}},
		"nil leaves its field alone": {
			in:   map[string]any{"enabled": nil, "name": nil, "list": nil, "labels": nil, "rules": nil, "one": nil, "period": nil},
			want: sampleConfig{Name: "kept"},
		},
		"all kinds of values": {
			in: map[string]any{
				"enabled": true, "name": "n", "small": 7, "big": uint64(1) << 60, "share": 1.5, "period": "5s",
				"list": []string{"a", "b"}, "labels": map[string]string{"k": "v"},
				"rules": []any{map[string]any{"match": "m", "count": 2}}, "one": map[string]any{"match": "o"},
			},
			want: sampleConfig{
				Enabled: &yes, Name: "n", Small: 7, Big: 1 << 60, Share: 1.5, Period: 5 * time.Second,
				List: []string{"a", "b"}, Labels: map[string]string{"k": "v"},
				Rules: []sampleRule{{"m", 2}}, One: &sampleRule{Match: "o"},
			},
		},
		"text where a number belongs": {
			in:   map[string]any{"share": "0.1", "small": "-3", "big": "18446744073709551615"},
			want: sampleConfig{Name: "kept", Share: 0.1, Small: -3, Big: 18446744073709551615},
		},
		"a whole number where a fraction may be": {in: map[string]any{"share": 2}, want: sampleConfig{Name: "kept", Share: 2}},
		"an unknown key is ignored":              {in: map[string]any{"later": 1}, want: sampleConfig{Name: "kept"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			doc, err := encodeConfig(tc.in)
			if err != nil {
				t.Fatal(err)
			}
			got := sampleConfig{Name: "kept"}
			if err := DecodeConfig(doc, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("config (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeConfig_EveryIntWidth(t *testing.T) {
	t.Parallel()
	widths := map[string][]byte{
		"positive fixint": {0x05}, "uint8": {0xcc, 5}, "uint16": {0xcd, 0, 5}, "uint32": {0xce, 0, 0, 0, 5},
		"uint64": {0xcf, 0, 0, 0, 0, 0, 0, 0, 5}, "int8": {0xd0, 5}, "int16": {0xd1, 0, 5}, "int32": {0xd2, 0, 0, 0, 5},
		"int64": {0xd3, 0, 0, 0, 0, 0, 0, 0, 5},
	}
	for name, value := range widths {
		doc := append([]byte{0x81, 0xa5, 's', 'm', 'a', 'l', 'l'}, value...)
		var got sampleConfig
		if err := DecodeConfig(doc, &got); err != nil || got.Small != 5 {
			t.Errorf("%s: got %d, %v", name, got.Small, err)
		}
	}
}

func TestDecodeConfig_Refuses(t *testing.T) {
	t.Parallel()
	cases := map[string][]byte{
		"a cut document":       {0x81, 0xa5, 's', 'm'},
		"a list at the root":   {0x91, 0x01},
		"text for a list":      {0x81, 0xa4, 'l', 'i', 's', 't', 0xa1, 'x'},
		"too deep":             bytes.Repeat([]byte{0x91}, 100_000),
		"a huge length":        {0xdf, 0xff, 0xff, 0xff, 0xff},
		"words for a number":   {0x81, 0xa5, 's', 'm', 'a', 'l', 'l', 0xa1, 'x'},
		"an out of range text": {0x81, 0xa5, 's', 'm', 'a', 'l', 'l', 0xa3, '2', '0', '0'},
	}
	for name, doc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got sampleConfig
			if err := DecodeConfig(doc, &got); err == nil {
				t.Errorf("accepted: %+v", got)
			}
		})
	}
	if err := DecodeConfig([]byte{0x80}, sampleConfig{}); err == nil {
		t.Error("accepted a target that is no pointer")
	}
}

func FuzzDecodeConfig(f *testing.F) {
	f.Add([]byte{0x80})
	f.Add([]byte{0x81, 0xa5, 's', 'm', 'a', 'l', 'l', 0xd0, 5})
	f.Add([]byte{0xdf, 0xff, 0xff, 0xff, 0xff})
	f.Add(bytes.Repeat([]byte{0x91}, 200))
	f.Fuzz(func(t *testing.T, doc []byte) {
		var got sampleConfig
		if err := DecodeConfig(doc, &got); err != nil && err.Error() == "" {
			t.Error("an error without text")
		}
	})
}

// encodeConfig writes a value in the encoding that DecodeConfig reads, by its codec tags.
func encodeConfig(v any) (b []byte, err error) {
	err = codec.NewEncoderBytes(&b, msgpackHandle()).Encode(v)
	return b, err
}
