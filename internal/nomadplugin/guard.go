package nomadplugin

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// guard stands around every handler: a panic becomes an error of that call, and no answer fails to be written
// because a vendor's tool printed bytes that are not UTF-8. Either would end a stream, and with it the plugin.
type guard struct{ log hclog.Logger }

func (g guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = g.panicked(info.FullMethod, r)
		}
	}()
	resp, err = next(ctx, req)
	if m, ok := resp.(proto.Message); ok && err == nil {
		resp = scrubbed(m)
	}
	return resp, err
}

func (g guard) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = g.panicked(info.FullMethod, r)
		}
	}()
	return next(srv, scrubbedStream{ss})
}

func (g guard) panicked(method string, r any) error {
	g.log.Error("call panicked", "method", method, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
	return status.Errorf(codes.Internal, "plugin panicked in %s: %v", method[strings.LastIndexByte(method, '/')+1:], r)
}

type scrubbedStream struct{ grpc.ServerStream }

func (s scrubbedStream) SendMsg(m any) error {
	if pm, ok := m.(proto.Message); ok {
		m = scrubbed(pm)
	}
	return s.ServerStream.SendMsg(m)
}

// scrubbed returns m, or a copy of it where each text that is not UTF-8 is made so. The author's message may be read
// by others meanwhile and is not touched.
func scrubbed(m proto.Message) proto.Message {
	if m == nil || !m.ProtoReflect().IsValid() || validText(m.ProtoReflect()) {
		return m
	}
	m = proto.Clone(m)
	scrub(m.ProtoReflect())
	return m
}

func validText(m protoreflect.Message) bool {
	valid := true
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, e protoreflect.Value) bool {
				valid = (fd.MapKey().Kind() != protoreflect.StringKind || utf8.ValidString(k.String())) &&
					validValue(fd.MapValue().Kind(), e)
				return valid
			})
		case fd.IsList():
			for i := 0; i < v.List().Len() && valid; i++ {
				valid = validValue(fd.Kind(), v.List().Get(i))
			}
		default:
			valid = validValue(fd.Kind(), v)
		}
		return valid
	})
	return valid
}

func validValue(kind protoreflect.Kind, v protoreflect.Value) bool {
	switch kind {
	case protoreflect.StringKind:
		return utf8.ValidString(v.String())
	case protoreflect.MessageKind:
		return validText(v.Message())
	}
	return true
}

func scrub(m protoreflect.Message) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
			scrubMap(fd, v.Map())
		case fd.IsList():
			for i := range v.List().Len() {
				if e := v.List().Get(i); fd.Kind() == protoreflect.StringKind {
					v.List().Set(i, cleanText(e.String()))
				} else if fd.Kind() == protoreflect.MessageKind {
					scrub(e.Message())
				}
			}
		case fd.Kind() == protoreflect.StringKind:
			m.Set(fd, cleanText(v.String()))
		case fd.Kind() == protoreflect.MessageKind:
			scrub(v.Message())
		}
		return true
	})
}

func scrubMap(fd protoreflect.FieldDescriptor, entries protoreflect.Map) {
	type entry struct {
		key   protoreflect.MapKey
		value protoreflect.Value
	}
	var all []entry
	entries.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		all = append(all, entry{k, v})
		return true
	})
	for _, e := range all {
		key, value := e.key, e.value
		if fd.MapKey().Kind() == protoreflect.StringKind {
			key = cleanText(key.String()).MapKey()
		}
		switch fd.MapValue().Kind() {
		case protoreflect.StringKind:
			value = cleanText(value.String())
		case protoreflect.MessageKind:
			scrub(value.Message())
		}
		entries.Clear(e.key)
		entries.Set(key, value)
	}
}

func cleanText(s string) protoreflect.Value {
	return protoreflect.ValueOfString(strings.ToValidUTF8(s, "\uFFFD"))
}
