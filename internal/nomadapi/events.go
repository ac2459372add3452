package nomadapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"

	"github.com/hashicorp/nomad/api"
)

// Batch is one line of the event stream. A heartbeat has no events and index 0.
type Batch struct {
	Index  uint64
	Events []Event
}

// Event is one change. The payload stays raw until somebody asks for it.
type Event struct {
	Topic      string
	Type       string
	Key        string
	Namespace  string
	FilterKeys []string
	Index      uint64
	Payload    json.RawMessage
}

// Events follows the event stream from the index on and calls handle for each batch, heartbeats included, until
// the context ends, the stream ends or handle returns an error. It never returns nil: the stream's end is
// io.EOF. Delivery is best effort, so the caller lists anew after each return.
func (c *Client) Events(ctx context.Context, index uint64, topics []string, handle func(Batch) error) error {
	params := url.Values{"index": {strconv.FormatUint(index, 10)}, "topic": topics}
	body, err := c.api.Raw().Response("/v1/event/stream?"+params.Encode(), query(ctx, AllNamespaces))
	if err != nil {
		return fmt.Errorf("open event stream: %w", err)
	}
	defer body.Close()
	lines := json.NewDecoder(body)
	for {
		var batch Batch
		if err := lines.Decode(&batch); err != nil {
			if errors.Is(err, io.EOF) {
				return io.EOF
			}
			return fmt.Errorf("read event stream: %w", err)
		}
		if err := handle(batch); err != nil {
			return err
		}
	}
}

// Allocation reads the payload of an event of topic Allocation. The allocation comes without its job.
func (e Event) Allocation() (*api.Allocation, error) {
	var out struct{ Allocation *api.Allocation }
	if err := e.read(&out); err != nil {
		return nil, err
	}
	if out.Allocation == nil {
		return nil, fmt.Errorf("event %s of %s carries no allocation", e.Type, e.Key)
	}
	return out.Allocation, nil
}

// Evaluation reads the payload of an event of topic Evaluation.
func (e Event) Evaluation() (*api.Evaluation, error) {
	var out struct{ Evaluation *api.Evaluation }
	if err := e.read(&out); err != nil {
		return nil, err
	}
	if out.Evaluation == nil {
		return nil, fmt.Errorf("event %s of %s carries no evaluation", e.Type, e.Key)
	}
	return out.Evaluation, nil
}

func (e Event) read(out any) error {
	if err := json.Unmarshal(e.Payload, out); err != nil {
		return fmt.Errorf("read %s event %s of %s: %w", e.Topic, e.Type, e.Key, err)
	}
	return nil
}
