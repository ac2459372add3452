package jobspec

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/gocty"
)

var durationType = reflect.TypeFor[time.Duration]()

// setValue puts a value of the file into a field of the API's structs. Null leaves the field as it is.
func setValue(field reflect.Value, value cty.Value) error {
	if value.IsNull() {
		return nil
	}
	if field.Kind() == reflect.Pointer {
		target := reflect.New(field.Type().Elem())
		if err := setValue(target.Elem(), value); err != nil {
			return err
		}
		field.Set(target)
		return nil
	}
	if field.Type() == durationType {
		d, err := duration(value)
		field.SetInt(int64(d))
		return err
	}
	want, err := wantedType(field.Type())
	if err != nil {
		return err
	}
	converted, err := convert.Convert(value, want)
	if err != nil {
		return err
	}
	if !converted.IsWhollyKnown() {
		return errors.New("the value is not known")
	}
	return gocty.FromCtyValue(converted, field.Addr().Interface())
}

// duration reads text such as "30s" or a number of nanoseconds.
func duration(value cty.Value) (time.Duration, error) {
	if value.Type() == cty.String {
		d, err := time.ParseDuration(value.AsString())
		if err != nil {
			return 0, fmt.Errorf(`%q is not a duration: write a number with a unit, for example "30s", "5m" or "1h"`, value.AsString())
		}
		return d, nil
	}
	if value.Type() == cty.Number {
		var ns int64
		err := gocty.FromCtyValue(value, &ns)
		return time.Duration(ns), err
	}
	return 0, errors.New(`a duration is needed, for example "30s"`)
}

// wantedType is the type to which a value is converted before it goes into a Go field.
func wantedType(t reflect.Type) (cty.Type, error) {
	switch t.Kind() {
	case reflect.String:
		return cty.String, nil
	case reflect.Bool:
		return cty.Bool, nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Float32, reflect.Float64:
		return cty.Number, nil
	case reflect.Slice:
		element, err := wantedType(t.Elem())
		return cty.List(element), err
	case reflect.Map:
		element, err := wantedType(t.Elem())
		return cty.Map(element), err
	}
	return cty.NilType, fmt.Errorf("this argument (%s) cannot be read from a job file", t)
}
