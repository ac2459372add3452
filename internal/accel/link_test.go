package accel

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func links(t *testing.T, texts ...string) []Link {
	t.Helper()
	var out []Link
	for _, text := range texts {
		l, err := ParseLink(text)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, l)
	}
	return out
}

func TestLink_TextAndBack(t *testing.T) {
	t.Parallel()
	for kind := range linkRanks {
		for _, count := range []string{"", "1", "18"} {
			text := string(kind) + count
			if got := links(t, text)[0].String(); got != text {
				t.Errorf("%s became %s", text, got)
			}
		}
	}
	for _, text := range []string{"", "nv0", "nv99999", "nv-1", "NV4", "gns", "18", "nv 4", "pix:1"} {
		if l, err := ParseLink(text); err == nil {
			t.Errorf("%q was read as %v", text, l)
		}
	}
}

func TestLink_NearestFirst(t *testing.T) {
	t.Parallel()
	want := "sio nv18 nv4 nv pix pxb phb node sys pcie"
	got := links(t, "node", "nv4", "pcie", "pix", "nv", "sys", "sio", "nv18", "phb", "pxb")
	slices.SortFunc(got, Link.Compare)
	var texts []string
	for _, l := range got {
		texts = append(texts, l.String())
	}
	if text := strings.Join(texts, " "); text != want {
		t.Errorf("got %s, want %s", text, want)
	}
}

func TestParseLinks_LeavesOutWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	all := links(t, "nv12", "sys")
	peers := map[string]Link{PeerID(NVIDIA, "GPU-b"): all[0], PeerID(NVIDIA, "GPU-a"): all[1]}
	text := FormatLinks(peers)
	if got, err := ParseLinks(text); err != nil || !cmp.Equal(got, peers) {
		t.Errorf("%s was read as %v, %v", text, got, err)
	}
	got, err := ParseLinks(text + ",c0:warp9,:pix")
	if err == nil || !maps.EqualFunc(got, peers, func(a, b Link) bool { return a.String() == b.String() }) {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := ParseLinks(""); err != nil || len(got) != 0 {
		t.Errorf("got %v, %v", got, err)
	}
}

func FuzzParseLinks(f *testing.F) {
	for _, seed := range []string{"", "c1a2b3c4:nv18,c0:pix", ",:,a:b", "c:nv1024"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		once, _ := ParseLinks(text) // what cannot be read is told; the rest must survive a round
		again, err := ParseLinks(FormatLinks(once))
		if err != nil || !cmp.Equal(once, again) {
			t.Errorf("%v became %v, %v", once, again, err)
		}
	})
}
