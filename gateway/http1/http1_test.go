package http1

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// bytesOf is a source of bytes that are there.
type bytesOf struct{ io.Reader }

func (s bytesOf) ReadTo(in *Input, p []byte) (int, error) {
	if p == nil {
		p = in.Take()
	}
	return s.Read(p)
}

func inputOf(r io.Reader) *Input { return &Input{From: bytesOf{r}} }

func TestUntilBlankLine_HoweverItComes(t *testing.T) {
	t.Parallel()
	const head = "GET / HTTP/1.1\r\nHost: a\r\n"
	for text, want := range map[string]error{
		head + "\r\nrest":                        nil,
		head:                                     io.EOF,
		head + "X-A: b\n\r\n\r\n":                nil, // who reads its lines refuses it
		head + "X-A: b\n":                        ErrMalformed,
		"\n":                                     ErrMalformed,
		head + strings.Repeat("a", MaxHead):      ErrTooLong,
		head + "\r\n" + strings.Repeat("a", 100): nil,
	} {
		for name, r := range map[string]io.Reader{"at once": strings.NewReader(text), "byte by byte": iotest.OneByteReader(strings.NewReader(text))} {
			in := inputOf(r)
			lines, err := in.UntilBlankLine()
			if name == "byte by byte" && strings.Contains(text, "b\n\r\n") {
				want = ErrMalformed // it is seen before the end comes
			}
			if !errors.Is(err, want) {
				t.Errorf("%.60q %s: %v, want %v", text, name, err, want)
			}
			if err == nil && !strings.HasPrefix(text, string(lines)+"\r\n") {
				t.Errorf("%.60q %s: %q", text, name, lines)
			}
		}
	}
}

func TestEachField(t *testing.T) {
	t.Parallel()
	var got []string
	err := EachField("host: a\r\nX-ODD-name:  b c\t\r\nEmpty:\r\nhost: d\r\n", func(name, value string) { got = append(got, name+"="+value) })
	if want := "[Host=a X-Odd-Name=b c Empty= Host=d]"; err != nil || fmt.Sprint(got) != want {
		t.Errorf("%v, %v, want %s", got, err, want)
	}
	for _, lines := range []string{"a : b\r\n", " a: b\r\n", ": b\r\n", "a\r\n", "a: b", "a: b\n", "a: \x00\r\n", "a: b\rc: d\r\n", "a\x7f: b\r\n", "ä: b\r\n"} {
		if err := EachField(lines, func(string, string) {}); !errors.Is(err, ErrMalformed) {
			t.Errorf("%q: %v", lines, err)
		}
	}
}

func TestSays(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"close": true, "x, CLOSE\t,y": true, "": false, "closed": false, "x close": false} {
		if Says([]string{"x", text}, "close") != want {
			t.Errorf("%q", text)
		}
	}
}

// TestPlainText_AnywhereInAText finds the same as looking at one byte after the other.
func TestPlainText_AnywhereInAText(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a fixed one
	for range 20_000 {
		text := bytes.Repeat([]byte("a"), r.IntN(40))
		want := true
		for n := range text {
			if r.IntN(20) == 0 {
				text[n] = byte(r.IntN(256))
			}
			want = want && (text[n] >= ' ' || text[n] == '\t') && text[n] != 0x7f
		}
		if PlainText(text) != want || PlainText(string(text)) != want {
			t.Fatalf("%q: want %t", text, want)
		}
	}
}

// bodies are of chunks, with what they give; a cut or bad end is an error behind it.
var bodies = map[string]string{
	"0\r\n\r\n": "",
	"5\r\nhello\r\nA;x=y\r\n, chunked!\r\n0\r\n\r\n":           "hello, chunked!",
	"5\r\nhello\r\n000\r\nX-Sum: 1\r\n\r\n":                    "hello",
	"5\r\nhello\r\n":                                           "hello",
	"9\r\nhello":                                               "hello",
	"5\r\nhelloX\n0\r\n\r\n":                                   "hello",
	"3\r\nhello\r\n0\r\n\r\n":                                  "hel",
	"+5\r\nhello\r\n0\r\n\r\n":                                 "",
	"00000000000000005;a\r\nhello\r\n0\r\n\r\n":                "",
	strings.Repeat("1\r\nx\r\n", 5000) + "0\r\n\r\n":           strings.Repeat("x", 5000),
	"2000\r\n" + strings.Repeat("x", 0x2000) + "\r\n0\r\n\r\n": strings.Repeat("x", 0x2000),
}

// TestBody_HoweverItComes and whichever way it is read, a body is the same and ends at the same byte.
func TestBody_HoweverItComes(t *testing.T) {
	t.Parallel()
	for text, want := range bodies {
		all := text + "rest"
		if text == "9\r\nhello" {
			all = text // it ends in the middle
		}
		var ends []string
		for _, r := range []io.Reader{strings.NewReader(all), iotest.OneByteReader(strings.NewReader(all)), iotest.HalfReader(strings.NewReader(all))} {
			for _, copied := range []bool{true, false} {
				if seeker, ok := r.(io.Seeker); ok {
					seeker.Seek(0, io.SeekStart) //nolint:errcheck // in memory
				} else if !copied {
					continue
				}
				in, b := inputOf(r), Body{Kind: Chunked}
				var got bytes.Buffer
				var err error
				for buf := make([]byte, 700); err == nil; {
					var n int
					data := buf
					if copied {
						n, err = b.Read(in, buf)
					} else {
						data, err = b.Next(in)
						n = len(data)
					}
					got.Write(data[:n])
				}
				rest, _ := io.ReadAll(r)
				if got.String() != want {
					t.Errorf("%.40q: %.40q, want %.40q", text, got.String(), want)
				}
				end := "bad"
				if err == io.EOF {
					end = string(in.Held()) + string(rest)
					if !b.All() {
						t.Errorf("%.40q: not all was given at its end", text)
					}
				}
				ends = append(ends, end)
			}
		}
		for _, end := range ends {
			if end != ends[0] || end != "bad" && end != "rest" {
				t.Errorf("%.40q ends at %q", text, ends)
				break
			}
		}
	}
}

// socket is one end of a connection, and the other.
func socket(t *testing.T) (s *Socket, to net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if to, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { to.Close() })
	from, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { from.Close() })
	s = &Socket{}
	s.Open(from)
	return s, to
}

// TestSocket_WritesAll of what is more than the system takes at once, and says what keeps it from that.
func TestSocket_WritesAll(t *testing.T) {
	t.Parallel()
	s, to := socket(t)
	want := bytes.Repeat([]byte("0123456789abcde\n"), 1<<20)
	wrote := make(chan error, 1)
	go func() {
		n, err := s.Write(want)
		if err == nil && n != len(want) {
			err = io.ErrShortWrite
		}
		wrote <- err
	}()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(to, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("what came is not what was written: %v", err)
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	s.SetWriteDeadline(time.Now().Add(-time.Second)) //nolint:errcheck // the write tells
	if n, err := s.Write(want); !errors.Is(err, os.ErrDeadlineExceeded) || n != 0 {
		t.Errorf("after its time: %d, %v", n, err)
	}
	s.SetWriteDeadline(time.Time{}) //nolint:errcheck // the write tells
	to.Close()
	var err error
	for err == nil {
		_, err = s.Write(want)
	}
	if n, err := s.Write(want); err == nil || n != 0 {
		t.Errorf("to nobody: %d, %v", n, err)
	}
	s.Close()
	if _, err := s.Write(want); !errors.Is(err, net.ErrClosed) {
		t.Errorf("when closed: %v", err)
	}
}

// TestSocket_HoldsNoBufferWhileItWaits, and gives what comes.
func TestSocket_HoldsNoBufferWhileItWaits(t *testing.T) {
	t.Parallel()
	s, to := socket(t)
	in := &Input{From: s}
	if !s.Quiet() {
		t.Error("a connection on which nothing came is not quiet")
	}
	for range 3 {
		if in.buf != nil {
			t.Error("a buffer is held for nothing")
		}
		go io.WriteString(to, "hello") //nolint:errcheck // the reader tells
		if err := in.Fill(); err != nil || !strings.HasPrefix("hello", string(in.Held())) {
			t.Fatalf("%q, %v", in.Held(), err)
		}
		for got := len(in.Held()); got < 5; got = len(in.Held()) {
			if err := in.Fill(); err != nil {
				t.Fatal(err)
			}
		}
		in.Drop()
	}
	to.Close()
	if err := in.Fill(); err != io.EOF {
		t.Error(err)
	}
	if s.Quiet() {
		t.Error("a connection that has ended is quiet")
	}
}
