#pragma once
// Values of the template language, with Python's types. Strings are shared and counted, everything
// else is owned by the Heap of one rendering and freed with it: templates can tie values into
// cycles (a namespace that holds itself), which rules out reference counting for containers.

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera::jinja {

/// A template that fails. The interpreter adds file and line and turns it into a UserError.
class Error : public std::runtime_error {
  public:
    explicit Error(const std::string& message) : std::runtime_error(message) {}
};
[[noreturn]] void fail(const std::string& message);

inline constexpr int64_t kMaxSteps = 10'000'000;
inline constexpr int64_t kMaxOutputBytes = int64_t{64} << 20;
inline constexpr int64_t kMaxMemoryBytes = int64_t{512} << 20;
/// Nesting of macro calls, of containers in each other and of statements in the source.
inline constexpr int kMaxDepth = 200;

enum class Type : uint8_t {
    kMissing,  ///< a variable that the template assigns later; never leaves the scope
    kUndefined,
    kNone,
    kBool,
    kInt,
    kFloat,
    kString,
    kList,
    kTuple,
    kDict,
    kNamespace,
    kRange,
    kView,
    kIterator,
    kFunction,
    kMacro,
    kLoop,
    kCycler,
    kJoiner
};

class Heap;

/// Bytes of a string (UTF-8, not checked) with their count of code points.
struct Text {
    Text(std::string bytes_in, Heap* heap_in);
    ~Text();
    Text(const Text&) = delete;
    Text& operator=(const Text&) = delete;

    std::string bytes;
    int64_t length;
    Heap* heap;  ///< whose budget it counts against; null for literals of the source
};

/// Anything that is not a scalar or a string; owned by the Heap.
struct Object {
    explicit Object(Type type_in, int depth_in = 0) : type(type_in), depth(depth_in) {}
    virtual ~Object() = default;
    Object(const Object&) = delete;
    Object& operator=(const Object&) = delete;

    const Type type;
    int depth;  ///< levels of containers or lazy iterators below and including this one
};

class Value {
  public:
    Value() : type_(Type::kNone) { payload_.integer = 0; }
    explicit Value(Object* object) : type_(object->type) { payload_.object = object; }
    static Value boolean(bool value);
    static Value integer(int64_t value);
    static Value real(double value);
    static Value text(std::shared_ptr<const Text> text, bool markup = false);
    /// A string outside any budget: literals of the source, names.
    static Value literal(std::string bytes);
    /// Prints as nothing; any other use fails with `message`.
    static Value undefined(const std::string& message);
    static Value missing();

    Type type() const { return type_; }
    bool is(Type type) const { return type_ == type; }
    bool is_undefined() const { return type_ <= Type::kUndefined; }
    bool is_none() const { return type_ == Type::kNone; }
    bool is_string() const { return type_ == Type::kString; }
    /// bool, int or float.
    bool is_number() const { return type_ >= Type::kBool && type_ <= Type::kFloat; }
    /// int or bool, which Python lets stand for 0 and 1.
    bool is_integral() const { return type_ == Type::kInt || type_ == Type::kBool; }
    bool is_list() const { return type_ == Type::kList || type_ == Type::kTuple; }
    /// A string that went through `safe` or `escape`; `+` escapes what is added to it.
    bool is_markup() const { return markup_; }

    bool as_bool() const { return payload_.integer != 0; }
    int64_t as_int() const { return payload_.integer; }
    double as_double() const;
    std::string_view view() const { return text_->bytes; }
    /// Of a string; of an undefined value it is the message.
    const Text& text() const { return *text_; }
    Object* object() const { return payload_.object; }
    template <class T>
    T* as() const {
        return static_cast<T*>(payload_.object);
    }
    int depth() const { return type_ > Type::kString ? payload_.object->depth : 0; }

  private:
    union {
        int64_t integer;
        double real;
        Object* object;
    } payload_;
    std::shared_ptr<const Text> text_;
    Type type_;
    bool markup_ = false;
};

/// Gives the next item or false at the end.
using Next = std::function<bool(Value& item)>;

struct List : Object {
    List(Type type_in, std::vector<Value> items_in, int depth_in)
        : Object(type_in, depth_in), items(std::move(items_in)) {}
    std::vector<Value> items;
    bool is_group = false;  ///< a pair of `groupby`, which also has names
};

/// Insertion order, any hashable key, keys compared as Python compares them (1 == 1.0 == True).
struct Dict : Object {
    Dict() : Object(Type::kDict, 1) {}
    const Value* find(Heap& heap, const Value& key) const;
    const Value* find(std::string_view key) const;
    void set(Heap& heap, const Value& key, const Value& value);

    std::vector<std::pair<Value, Value>> entries;

  private:
    size_t find_position(Heap& heap, const Value& key) const;
    std::unordered_multimap<size_t, size_t> index_;  ///< hash to position in entries
};

struct Namespace : Object {
    Namespace() : Object(Type::kNamespace) {}
    Dict attributes;
};

struct Range : Object {
    Range(int64_t start_in, int64_t stop_in, int64_t step_in, int64_t length_in)
        : Object(Type::kRange), start(start_in), stop(stop_in), step(step_in), length(length_in) {}
    int64_t at(int64_t position) const { return start + position * step; }
    int64_t start;
    int64_t stop;  ///< as written; only shown
    int64_t step, length;
};

enum class ViewKind : uint8_t { kKeys, kValues, kItems };
struct View : Object {
    View(const Dict* dict_in, ViewKind kind_in)
        : Object(Type::kView, dict_in->depth), dict(dict_in), kind(kind_in) {}
    const Dict* dict;
    ViewKind kind;
};

/// A generator: it can be read once.
struct Iterator : Object {
    Iterator(Next next_in, int depth_in)
        : Object(Type::kIterator, depth_in), next(std::move(next_in)) {}
    Next next;
};

struct Arguments {
    std::vector<Value> positional;
    std::vector<std::pair<std::string, Value>> named;
};

class Runtime;
struct Function : Object {
    using Body = std::function<Value(Runtime&, const Arguments&)>;
    Function(std::string name_in, Body body_in)
        : Object(Type::kFunction), name(std::move(name_in)), body(std::move(body_in)) {}
    std::string name;
    Body body;
};

struct Cycler : Object {
    explicit Cycler(std::vector<Value> items_in)
        : Object(Type::kCycler), items(std::move(items_in)) {}
    std::vector<Value> items;
    size_t position = 0;
};

struct Joiner : Object {
    explicit Joiner(Value separator_in)
        : Object(Type::kJoiner), separator(std::move(separator_in)) {}
    Value separator;
    bool used = false;
};

/// Owns the objects of one rendering and counts what it costs; templates come with models and are
/// not trusted, so every operation whose cost grows with its operands says so here.
class Heap {
  public:
    /// Fails when the template has used up its 10 million steps.
    void step(int64_t count = 1);
    /// Counts live memory; fails above kMaxMemoryBytes.
    void charge(int64_t bytes);
    void release(int64_t bytes) { memory_ -= bytes; }

    Value string(std::string bytes, bool markup = false);
    Value list(std::vector<Value> items);
    Value tuple(std::vector<Value> items);
    /// A lazy sequence that draws from values of at most `source_depth`.
    Value iterator(Next next, int source_depth);
    template <class T, class... Args>
    T* make(Args&&... args) {
        charge(static_cast<int64_t>(sizeof(T)) + 32);
        auto owned = std::make_unique<T>(std::forward<Args>(args)...);
        T* object = owned.get();
        objects_.push_back(std::move(owned));
        return object;
    }

  private:
    Value sequence(Type type, std::vector<Value> items);
    std::vector<std::unique_ptr<Object>> objects_;
    int64_t steps_ = 0;
    int64_t memory_ = 0;
};

}  // namespace tessera::jinja
