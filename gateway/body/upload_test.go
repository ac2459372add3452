package body

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"os"
	"strings"
	"testing"
	"testing/iotest"
)

// audioForm has its model after the file, as some clients send it.
func audioForm(t testing.TB, file []byte, model string) (body []byte, contentType string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	f, err := w.CreateFormFile("file", "a.wav")
	if err == nil {
		_, err = f.Write(file)
	}
	if err := errors.Join(err, w.WriteField("language", ""), w.WriteField("model", model), w.WriteField("prompt", "model"), w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), w.FormDataContentType()
}

// TestUpload_ByteEqual: P76.
func TestUpload_ByteEqual(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, file := range map[string][]byte{
		"small": []byte("RIFF"), "3 MB": bytes.Repeat([]byte("\r\n--not\r\n\r\n"), 300_000), "empty": nil,
	} {
		raw, kind := audioForm(t, file, "whisper")
		for reading, src := range map[string]io.Reader{
			"at once": bytes.NewReader(raw), "byte by byte": iotest.OneByteReader(bytes.NewReader(raw)), "the end with data": iotest.DataErrReader(bytes.NewReader(raw)),
		} {
			if name == "3 MB" && reading == "byte by byte" {
				continue // minutes of nothing new
			}
			u, err := NewUpload(src, kind, dir, 1<<30)
			if err != nil {
				t.Fatal(err)
			}
			if model, err := u.Model(); err != nil || model != "whisper" {
				t.Fatalf("%s, %s: model %q, %v", name, reading, model, err)
			}
			half := u.Reader("")
			if _, err := io.CopyN(io.Discard, half, int64(len(raw)/2)); err != nil {
				t.Fatal(err)
			}
			for _, as := range []string{"", "whisper-large", "w"} {
				got, err := io.ReadAll(u.Reader(as))
				want := raw
				if as != "" {
					want = bytes.Replace(raw, []byte("\r\n\r\nwhisper\r\n"), []byte("\r\n\r\n"+as+"\r\n"), 1)
				}
				if err != nil || !bytes.Equal(got, want) || int64(len(got)) != int64(len(raw))+u.Grows(as) {
					t.Errorf("%s, %s, sent as %q: %d bytes of %d, %v", name, reading, as, len(got), len(want), err)
				}
			}
			if _, err := half.Read(make([]byte, 10)); !errors.Is(err, os.ErrClosed) {
				t.Errorf("a reader before the last one reads on: %v", err)
			}
			if err := u.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v are left behind: %v", left, err)
	}
}

// TestUpload_StreamsOnceTheModelIsKnown: what comes later is not waited for, and no more than 1 MiB stays in memory.
func TestUpload_StreamsOnceTheModelIsKnown(t *testing.T) {
	t.Parallel()
	body, slow := io.Pipe()
	u, err := NewUpload(body, "multipart/form-data; boundary=x", t.TempDir(), 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	const head = "--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--x\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n"
	go io.WriteString(slow, head) //nolint:errcheck // the reading end tells
	if model, err := u.Model(); model != "m" || err != nil {
		t.Fatalf("%q, %v", model, err)
	}
	r := u.Reader("")
	got := make([]byte, len(head))
	if _, err := io.ReadFull(r, got); err != nil || string(got) != head {
		t.Fatalf("%q, %v", got, err)
	}
	go func() {
		for range 50 {
			slow.Write(make([]byte, 100_000)) //nolint:errcheck // the reading end tells
		}
		io.WriteString(slow, "\r\n--x--\r\n") //nolint:errcheck // the reading end tells
		slow.Close()
	}()
	if n, err := io.Copy(io.Discard, r); n != 5_000_009 || err != nil || len(u.mem) > maxMemory || u.Err() != nil {
		t.Errorf("%d bytes, %v; %d in memory", n, err, len(u.mem))
	}
}

// TestUpload_EndComesWithTheLastPiece, as net/http gives it: nothing of the last piece is lost when the model came first.
func TestUpload_EndComesWithTheLastPiece(t *testing.T) {
	t.Parallel()
	const raw = "--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--x\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n"
	body := raw + strings.Repeat("f", 100_000) + "\r\n--x--\r\n"
	u, err := NewUpload(iotest.DataErrReader(strings.NewReader(body)), "multipart/form-data; boundary=x", t.TempDir(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if _, err := u.Model(); err != nil {
		t.Fatal(err)
	}
	if all, err := io.ReadAll(u.Reader("")); string(all) != body || err != nil {
		t.Errorf("%d bytes of %d, %v", len(all), len(body), err)
	}
}

func TestUpload_Refuses(t *testing.T) {
	t.Parallel()
	field := func(name, value string) string {
		return fmt.Sprintf("--x\r\nContent-Disposition: form-data; name=%q\r\n\r\n%s\r\n", name, value)
	}
	for body, want := range map[string]error{
		"":                                   ErrBad,
		field("file", "a") + "--x--\r\n":     ErrBad,
		field("model", "") + "--x--\r\n":     ErrBad,
		field("model", "\xff") + "--x--\r\n": ErrBad,
		field("model", strings.Repeat("m", 2000)) + "--x--\r\n":                  ErrBad,
		"--x\r\nA: " + strings.Repeat("h", 20_000):                               ErrBad,
		field("file", strings.Repeat("f", 200_000)):                              ErrTooLarge,
		field("model", "a") + field("model", "b") + "--x--\r\n":                  ErrBad,
		"--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n--x--\r\n": ErrBad,
	} {
		u, err := NewUpload(strings.NewReader(body), "multipart/form-data; boundary=x", t.TempDir(), 100_000)
		if err != nil {
			t.Fatal(err)
		}
		if model, err := u.Model(); !errors.Is(err, want) {
			t.Errorf("%.60q: model %q, %v", body, model, err)
		}
		u.Close()
	}
	for _, kind := range []string{"application/json", "multipart/form-data", "", "multipart/mixed; boundary=x"} {
		if _, err := NewUpload(nil, kind, "", 1); !errors.Is(err, ErrBad) {
			t.Errorf("%q: %v", kind, err)
		}
	}
	u, err := NewUpload(iotest.ErrReader(io.ErrUnexpectedEOF), "multipart/form-data; boundary=x", "", 10)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.Model(); !errors.Is(err, io.ErrUnexpectedEOF) || u.Err() == nil {
		t.Errorf("a client that left: %v", err)
	}
}

// FuzzUpload: a form is passed on byte by byte, in whatever pieces it comes, and its model is the one that Go finds.
func FuzzUpload(f *testing.F) {
	raw, _ := audioForm(f, []byte("RIFF\r\n--"), "m")
	f.Add(raw, 7)
	f.Add([]byte("--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--x--"), 1)
	f.Fuzz(func(t *testing.T, raw []byte, size int) {
		if size < 1 {
			return
		}
		u, err := NewUpload(&pieces{raw, size}, "multipart/form-data; boundary=x", "", 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		defer u.Close()
		model, err := u.Model()
		if err != nil {
			return
		}
		all, err := io.ReadAll(u.Reader(""))
		if err == nil && !bytes.Equal(all, raw) {
			t.Errorf("%q became %q", raw, all)
		}
		if again, err := io.ReadAll(u.Reader("other")); err == nil && len(again) != len(raw)+int(u.Grows("other")) {
			t.Errorf("%q with model %q became %q", raw, model, again)
		}
	})
}

type pieces struct {
	rest []byte
	size int
}

func (p *pieces) Read(into []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(into, p.rest[:min(p.size, len(p.rest))])
	p.rest = p.rest[n:]
	return n, nil
}
