package grant

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
)

const shareFile = `{"v":1,"state":"releasing","backend":"vnpu","ask":{"id":"hf01","task_id":"t","vendor":"ascend","card":{"uuid":"NPU-1"},"form":"shared"}}`

func TestShares_ReadsWhatItCanAndSaysWhatItCannot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if got, err := Shares(filepath.Join(dir, "absent")); err != nil || len(got) != 0 {
		t.Errorf("an absent folder: %v, %v", got, err)
	}
	for name, body := range map[string]string{
		"hf01.share.json": shareFile, ".new-1.share.json": "{", "hf01.note.json": "{", "ledger.lock": "",
		"hf02.share.json": strings.Replace(shareFile, `"v":1`, `"v":2`, 1), "hf03.share.json": "{",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Shares(dir)
	want := map[string]Share{"hf01": {ID: "hf01", TaskID: "t", Vendor: accel.Ascend, Card: "NPU-1", Form: accel.Shared, State: ShareReleasing}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if err == nil || !strings.Contains(err.Error(), "hf02") || !strings.Contains(err.Error(), "hf03") || strings.Contains(err.Error(), "new-1") {
		t.Errorf("what cannot be read: %v", err)
	}
	if _, err := Shares(filepath.Join(dir, "hf01.share.json")); err == nil {
		t.Error("a file is taken for a folder without shares")
	}
}

func FuzzReadShare(f *testing.F) {
	f.Add([]byte(shareFile))
	f.Add([]byte(`{"v":1}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if s, err := ReadShare("hf01", body); err == nil && (s.ID != "hf01" || s.TaskID == "" || s.State == "") {
			t.Errorf("half a share is read: %+v", s)
		}
	})
}
