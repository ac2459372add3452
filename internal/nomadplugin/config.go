package nomadplugin

import (
	"fmt"
	"reflect"
	"strconv"

	"github.com/go-viper/mapstructure/v2"
	"github.com/hashicorp/go-msgpack/v2/codec"
)

// Limits of a config document. Both are far above any real one and keep a hostile one from exhausting the stack or
// the memory.
const (
	maxConfigDepth   = 64
	maxConfigInitLen = 4096
)

// DecodeConfig reads a config document, as the host encodes it, into the struct that out points to, by its codec
// tags. An option that was not set arrives as nil and leaves its field alone; a fraction that no float holds
// exactly arrives as text and is read as a number; whole numbers may have any width. A document that does not fit is
// an error, never a panic.
func DecodeConfig(msgpack []byte, out any) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("read config: %v", r)
		}
	}()
	if len(msgpack) == 0 {
		return nil
	}
	var doc any
	if err := codec.NewDecoderBytes(msgpack, msgpackHandle()).Decode(&doc); err != nil {
		return fmt.Errorf("read config: %w", err)
	}
	dec, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{
		TagName:    "codec",
		Result:     out,
		DecodeHook: mapstructure.ComposeDecodeHookFunc(mapstructure.StringToTimeDurationHookFunc(), textToNumber),
	})
	if err != nil {
		return fmt.Errorf("read config: %w", err)
	}
	if err := dec.Decode(doc); err != nil {
		return fmt.Errorf("read config: %w", err)
	}
	return nil
}

func msgpackHandle() *codec.MsgpackHandle {
	h := &codec.MsgpackHandle{}
	h.RawToString = true
	h.MapType = reflect.TypeFor[map[string]any]()
	h.MaxDepth = maxConfigDepth
	h.MaxInitLen = maxConfigInitLen
	return h
}

// textToNumber reads text as a number where the field is one.
func textToNumber(from, to reflect.Type, value any) (any, error) {
	text, ok := value.(string)
	if !ok || from.Kind() != reflect.String {
		return value, nil
	}
	switch to.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return strconv.ParseInt(text, 10, to.Bits())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return strconv.ParseUint(text, 10, to.Bits())
	case reflect.Float32, reflect.Float64:
		return strconv.ParseFloat(text, to.Bits())
	}
	return value, nil
}
