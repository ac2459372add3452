package docker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

func frameOf(stream byte, text string) []byte {
	head := make([]byte, 8)
	head[0] = stream
	binary.BigEndian.PutUint32(head[4:], uint32(len(text)))
	return append(head, text...)
}

func TestCopyFrames(t *testing.T) {
	t.Parallel()
	var in, out, errOut bytes.Buffer
	in.Write(frameOf(1, "one "))
	in.Write(frameOf(2, "bad"))
	in.Write(frameOf(1, strings.Repeat("x", 100000)))
	in.Write(frameOf(1, ""))
	if err := copyFrames(&out, &errOut, &in); err != nil {
		t.Fatal(err)
	}
	if out.String() != "one "+strings.Repeat("x", 100000) || errOut.String() != "bad" {
		t.Errorf("stdout %d bytes, stderr %q", out.Len(), errOut.String())
	}
	if err := copyFrames(&out, &errOut, bytes.NewReader(frameOf(3, "it broke"))); err == nil || !strings.Contains(err.Error(), "it broke") {
		t.Errorf("the daemon's own error: %v", err)
	}
}

func TestCutTime(t *testing.T) {
	t.Parallel()
	at, rest := cutTime([]byte("2026-01-02T03:04:05.000000006Z text with blanks\n"))
	if !at.Equal(time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)) || string(rest) != "text with blanks\n" {
		t.Errorf("cut = %v, %q", at, rest)
	}
	if at, rest := cutTime([]byte("no time\n")); !at.IsZero() || string(rest) != "no time\n" {
		t.Errorf("cut = %v, %q", at, rest)
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add(frameOf(1, "hello"))
	f.Add([]byte{1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{9})
	f.Fuzz(func(t *testing.T, body []byte) {
		r := bytes.NewReader(body)
		var buf []byte
		for {
			_, content, err := readFrame(r, buf)
			if err != nil {
				return
			}
			buf = content[:0]
		}
	})
}

func FuzzReadPull(f *testing.F) {
	f.Add([]byte(`{"status":"Downloading","id":"a","progressDetail":{"current":5,"total":10}}`))
	f.Add([]byte(`{"error":"x"}`))
	f.Add([]byte(`{"status":"Downloading","progressDetail":{"current":-5,"total":9223372036854775807}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		last := ""
		err := readPull(bytes.NewReader(body), func(s string) {
			if s == last {
				t.Errorf("said twice: %s", s)
			}
			last = s
		})
		if errors.Is(err, io.EOF) {
			t.Errorf("end of input is no error: %v", err)
		}
	})
}
