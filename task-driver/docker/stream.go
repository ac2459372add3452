package docker

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// maxFrame bounds one frame of a container's output; the daemon itself cuts lines at 16 KiB.
const maxFrame = 64 << 20

// readFrame reads one frame of the Engine's multiplexed output: stream number, three zero bytes, length in big
// endian, content. Source: Engine API, "Attach to a container", stream format.
func readFrame(r io.Reader, buf []byte) (stream byte, content []byte, err error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[4:])
	if head[0] > 3 || size > maxFrame {
		return 0, nil, fmt.Errorf("output frame of stream %d with %d bytes is not one", head[0], size)
	}
	if int(size) > cap(buf) {
		buf = make([]byte, size)
	}
	content = buf[:size]
	if _, err := io.ReadFull(r, content); err != nil {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return head[0], content, nil
}

// copyFrames sorts multiplexed output into the two writers until it ends.
func copyFrames(stdout, stderr io.Writer, r io.Reader) error {
	var buf []byte
	for {
		stream, content, err := readFrame(r, buf)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		buf = content[:0]
		w := stdout
		switch stream {
		case 2:
			w = stderr
		case 3:
			return fmt.Errorf("daemon: %s", content)
		}
		if _, err := w.Write(content); err != nil {
			return err
		}
	}
}

// cutTime splits the time off a log frame that was asked for with timestamps.
func cutTime(content []byte) (time.Time, []byte) {
	stamp, rest, ok := bytes.Cut(content, []byte{' '})
	if !ok {
		return time.Time{}, content
	}
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return time.Time{}, content
	}
	return at, rest
}

// pullLine is one line of the answer to a pull.
type pullLine struct {
	ID       string `json:"id"`
	Status   string `json:"status"`
	Error    string `json:"error"`
	Progress struct {
		Current int64 `json:"current"`
		Total   int64 `json:"total"`
	} `json:"progressDetail"`
}

// sayEvery is how often a pull that is slow is told of.
const sayEvery = 10 * time.Second

// pulling keeps how much of an image has come.
type pulling struct {
	layers map[string]layer
	said   int64 // percent told last; -1 is nothing
	at     time.Time
	now    func() time.Time
}

type layer struct{ current, total int64 }

// note takes a line and returns what to say, nothing most of the time.
func (p *pulling) note(line pullLine) string {
	if line.Status != "Downloading" || line.Progress.Total <= 0 || line.Progress.Current < 0 {
		return ""
	}
	p.layers[line.ID] = layer{min(line.Progress.Current, line.Progress.Total), line.Progress.Total}
	var current, total float64
	for _, l := range p.layers {
		current, total = current+float64(l.current), total+float64(l.total)
	}
	percent, now := int64(current/total*100), p.now()
	if percent <= p.said || percent/10 == p.said/10 && p.said >= 0 && now.Sub(p.at) < sayEvery {
		return ""
	}
	p.said, p.at = percent, now
	return fmt.Sprintf("%d %% of %.1f MiB", percent, total/(1<<20))
}

// readPull reads the answer to a pull, load or import to its end. The daemon answers 200 and says errors in the body.
func readPull(r io.Reader, progress func(string)) error {
	p := pulling{layers: map[string]layer{}, said: -1, now: time.Now}
	dec := json.NewDecoder(r)
	for {
		var line pullLine
		err := dec.Decode(&line)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the daemon's answer: %w", err)
		}
		if line.Error != "" {
			return errors.New(line.Error)
		}
		if progress == nil {
			continue
		}
		if text := p.note(line); text != "" {
			progress(text)
		}
	}
}
