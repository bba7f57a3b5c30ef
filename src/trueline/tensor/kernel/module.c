/* trueline.tensor._native: the kernels as functions of Python. Signatures and meaning: tensor/_native.pyi.
 *
 * Only the stable ABI of Python 3.11 is used, and nothing of NumPy's or torch's: tensors come as addresses, whose owner
 * the caller keeps alive, and results go into buffers.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "kernel.h"

#define INTERFACE 4 /* as in tensor/native.py: another build than the sources is not called */

/* Bytes from which other threads may run meanwhile. Less is read within Python's own 5 ms between two threads, and who
 * lets go waits for as long for its turn. */
#define ALONE (16 << 20)

/* What this machine runs best, found when the module is loaded; tests choose others. */
static const Kernels *chosen;

static bool take_stats(PyObject *out, Py_buffer *view, Measure *measure)
{
    if (out == Py_None)
        return true;
    if (PyObject_GetBuffer(out, view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE | PyBUF_FORMAT) < 0)
        return false;
    if (view->len != NUM_STATS * (Py_ssize_t)sizeof(double) || !view->format || strcmp(view->format, "d") != 0) {
        PyBuffer_Release(view);
        view->obj = NULL;
        PyErr_Format(PyExc_ValueError, "statistics go into %d float64 in one row.", NUM_STATS);
        return false;
    }
    measure->stats = view->buf;
    return true;
}

/* False with an error set where these are not weights. */
static bool take_weights(PyObject *from, const Weights **weights)
{
    char *bytes;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(from, &bytes, &length) < 0)
        return false;
    if (length != (Py_ssize_t)sizeof(Weights)) {
        PyErr_Format(PyExc_ValueError, "weights are %zd bytes and not %zd.", (Py_ssize_t)sizeof(Weights), length);
        return false;
    }
    *weights = (const Weights *)bytes;
    return true;
}

/* A tensor whose storage was freed (FSDP2 does that) has elements and no memory. */
static bool there(const Value *value)
{
    if (value->num > 0 && !value->memory)
        PyErr_Format(PyExc_ValueError, "%lld elements are to be read, and their memory is freed.", (long long)value->num);
    return !PyErr_Occurred();
}

/* The places where runs begin: one number, or a buffer of them. */
static bool take_starts(PyObject *from, uint64_t *start, Py_buffer *view, Measure *measure)
{
    if (PyLong_Check(from)) {
        *start = PyLong_AsUnsignedLongLong(from);
        measure->starts = start;
        measure->num_runs = 1;
        return !PyErr_Occurred();
    }
    if (PyObject_GetBuffer(from, view, PyBUF_C_CONTIGUOUS) < 0)
        return false;
    measure->starts = view->buf;
    measure->num_runs = view->len / 8;
    return true;
}

static PyObject *measured(Value *value, PyObject *out, PyObject *weights, PyObject *starts, PyObject *prints)
{
    Measure measure = {.prints = PyObject_IsTrue(prints) == 1};
    Py_buffer view = {0}, places = {0};
    uint64_t start;
    if (there(value) && take_weights(weights, &measure.weights) && take_stats(out, &view, &measure) &&
        take_starts(starts, &start, &places, &measure)) {
        if (measure.num_runs && value->num % measure.num_runs)
            PyErr_Format(PyExc_ValueError, "%lld numbers are not %lld runs of equal length.", (long long)value->num,
                         (long long)measure.num_runs);
        else if (value->num * width_of(value->kind) < ALONE) {
            chosen->measure(value, &measure);
        } else {
            Py_BEGIN_ALLOW_THREADS;
            chosen->measure(value, &measure);
            Py_END_ALLOW_THREADS;
        }
    }
    PyBuffer_Release(&view);
    PyBuffer_Release(&places);
    return PyErr_Occurred() ? NULL : PyLong_FromUnsignedLongLong(measure.fingerprint);
}

static bool take_number(PyObject *from, int64_t least, int64_t *number)
{
    *number = PyLong_AsLongLong(from);
    if (*number == -1 && PyErr_Occurred())
        return false;
    if (*number < least)
        PyErr_Format(PyExc_ValueError, "%lld is less than %lld.", (long long)*number, (long long)least);
    return *number >= least;
}

static bool take_memory(PyObject *const *args, Value *value)
{
    int64_t kind;
    uint64_t address = PyLong_AsUnsignedLongLong(args[1]);
    if (PyErr_Occurred() || !take_number(args[0], 0, &kind))
        return false;
    if (kind >= NUM_KINDS) {
        PyErr_Format(PyExc_ValueError, "%lld is no kind of number.", (long long)kind);
        return false;
    }
    value->kind = (enum Kind)kind;
    value->memory = (const char *)(uintptr_t)address;
    return true;
}

static bool expect(Py_ssize_t given, Py_ssize_t expected)
{
    if (given != expected)
        PyErr_Format(PyExc_TypeError, "%zd arguments given, %zd expected.", given, expected);
    return given == expected;
}

static PyObject *measure_dense(PyObject *module, PyObject *const *args, Py_ssize_t num_args)
{
    Value value = {0};
    (void)module;
    if (!expect(num_args, 7) || !take_memory(args, &value) || !take_number(args[2], 0, &value.num))
        return NULL;
    return measured(&value, args[3], args[4], args[5], args[6]);
}

static bool take_dims(PyObject *shape, PyObject *strides, Value *value)
{
    Py_ssize_t ndim = PyTuple_Size(shape);
    if (ndim < 0 || PyTuple_Size(strides) != ndim || ndim > MAX_DIMS) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "shape and strides have unlike lengths, or more than 64 dims.");
        return false;
    }
    value->ndim = (int)ndim;
    value->num = 1;
    for (int dim = 0; dim < value->ndim; dim++) {
        if (!take_number(PyTuple_GetItem(shape, dim), 0, &value->shape[dim]) ||
            !take_number(PyTuple_GetItem(strides, dim), 0, &value->stride[dim]))
            return false;
        value->num *= value->shape[dim];
    }
    return true;
}

/* Dims that continue each other become one; what is contiguous then has none. */
static void join_dims(Value *value)
{
    int kept = 0;
    for (int dim = 0; dim < value->ndim; dim++) {
        int64_t shape = value->shape[dim], stride = value->stride[dim];
        if (shape == 1)
            continue;
        if (kept > 0 && value->stride[kept - 1] == shape * stride) {
            value->shape[kept - 1] *= shape;
            value->stride[kept - 1] = stride;
        } else {
            value->shape[kept] = shape;
            value->stride[kept++] = stride;
        }
    }
    value->ndim = kept == 1 && value->stride[0] == 1 ? 0 : kept;
}

static PyObject *measure_strided(PyObject *module, PyObject *const *args, Py_ssize_t num_args)
{
    Value value = {0};
    (void)module;
    if (!expect(num_args, 8) || !take_memory(args, &value) || !take_dims(args[2], args[3], &value))
        return NULL;
    if (value.num == 0)
        value.ndim = 0;
    join_dims(&value);
    return measured(&value, args[4], args[5], args[6], args[7]);
}

static PyObject *exponents(PyObject *module, PyObject *const *args, Py_ssize_t num_args)
{
    Value value = {0};
    Py_buffer counts = {0};
    (void)module;
    if (!expect(num_args, 4) || !take_memory(args, &value) || !take_number(args[2], 0, &value.num) || !there(&value) ||
        PyObject_GetBuffer(args[3], &counts, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) < 0)
        return NULL;
    bool fits = value.kind <= F64 && counts.len == NUM_EXPONENTS * (Py_ssize_t)sizeof(int64_t);
    if (!fits)
        PyErr_Format(PyExc_ValueError, "exponents of floats go into %d int64.", NUM_EXPONENTS);
    else
        chosen->exponents(value.kind, value.memory, value.num, counts.buf);
    PyBuffer_Release(&counts);
    return fits ? Py_NewRef(Py_None) : NULL;
}

/* What sketch() was given, of P parameters, n gradients and m groups. */
typedef struct {
    Py_buffer table, norm2, sketch; /* int64 [P, TABLE], float64 [n] and float64 [m, k] */
    int64_t k, first_shard, num_shards;
    PyObject *list; /* GIVEN numbers for each gradient */
} Gradients;

enum {
    WIDTH_AT, /* elements of one shard */
    ROWS_AT,
    TAIL_AT,
    PLACE_AT, /* of the tail of the first shard */
    SIGNS_AT, /* address of float32 */
    TAIL_SIGNS_AT,
    TABLE
};
enum { PARAMETER, GROUP, KIND, ADDRESS, NUM, GIVEN };

static bool sketch_one(const Gradients *of, Py_ssize_t number)
{
    int64_t given[GIVEN];
    for (int i = 0; i < GIVEN; i++)
        if (!take_number(PyList_GetItem(of->list, number * GIVEN + i), 0, &given[i]))
            return false;
    const int64_t *row = (const int64_t *)of->table.buf + given[PARAMETER] * TABLE;
    if ((given[PARAMETER] + 1) * TABLE * 8 > of->table.len || (given[GROUP] + 1) * of->k * 8 > of->sketch.len ||
        (given[KIND] > F64) || given[NUM] != row[WIDTH_AT] * of->num_shards || (given[NUM] && !given[ADDRESS])) {
        PyErr_Format(PyExc_ValueError, "gradient %zd of %lld elements is not what was prepared for.", number,
                     (long long)given[NUM]);
        return false;
    }
    if (row[ROWS_AT] * of->k + row[TAIL_AT] != row[WIDTH_AT]) {
        PyErr_Format(PyExc_ValueError, "parameter %lld has other rows than its elements.", (long long)given[PARAMETER]);
        return false;
    }
    enum Kind kind = (enum Kind)given[KIND];
    const char *memory = (const char *)(uintptr_t)given[ADDRESS];
    double *into = (double *)of->sketch.buf + given[GROUP] * of->k, square = 0;
    for (int64_t shard = of->first_shard; shard < of->first_shard + of->num_shards; shard++) {
        Gradient gradient = {
            .rows = row[ROWS_AT],
            .tail = row[TAIL_AT],
            .place = row[PLACE_AT] + shard * row[TAIL_AT],
            .signs = (const float *)(uintptr_t)row[SIGNS_AT] + shard * row[ROWS_AT],
            .tail_signs = (const float *)(uintptr_t)row[TAIL_SIGNS_AT],
        };
        if (given[NUM] * width_of(kind) < ALONE) {
            square += chosen->sketch(kind, memory, &gradient, of->k, into);
        } else {
            Py_BEGIN_ALLOW_THREADS;
            square += chosen->sketch(kind, memory, &gradient, of->k, into);
            Py_END_ALLOW_THREADS;
        }
        memory += row[WIDTH_AT] * width_of(kind);
    }
    ((double *)of->norm2.buf)[number] = square;
    return true;
}

static bool sketch_all(Gradients *of)
{
    Py_ssize_t num = PyList_Size(of->list) / GIVEN;
    if (PyErr_Occurred())
        return false;
    if (of->k == 0 || of->norm2.len != num * 8 || of->sketch.len % (of->k * 8) != 0) {
        PyErr_SetString(PyExc_ValueError, "norms and sketches have other lengths than what is to be measured.");
        return false;
    }
    for (Py_ssize_t number = 0; number < num; number++)
        if (!sketch_one(of, number))
            return false;
    return true;
}

static PyObject *sketch(PyObject *module, PyObject *const *args, Py_ssize_t num_args)
{
    Gradients of = {0};
    const int into = PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE;
    (void)module;
    if (!expect(num_args, 7) || !take_number(args[2], 0, &of.k) || !take_number(args[3], 0, &of.first_shard) ||
        !take_number(args[4], 0, &of.num_shards))
        return NULL;
    of.list = args[1];
    bool done = PyObject_GetBuffer(args[0], &of.table, PyBUF_C_CONTIGUOUS) == 0 &&
                PyObject_GetBuffer(args[5], &of.norm2, into) == 0 &&
                PyObject_GetBuffer(args[6], &of.sketch, into) == 0 && sketch_all(&of);
    PyBuffer_Release(&of.table);
    PyBuffer_Release(&of.norm2);
    PyBuffer_Release(&of.sketch);
    return done ? Py_NewRef(Py_None) : NULL;
}

static PyObject *instruction_sets(PyObject *module, PyObject *none)
{
    (void)module, (void)none;
    PyObject *names = PyList_New(0);
    for (int i = 0; names && i < NUM_KERNELS; i++) {
        if (!kernels_run_here(ALL_KERNELS[i]))
            continue;
        PyObject *name = PyUnicode_FromString(ALL_KERNELS[i]->name);
        if (!name || PyList_Append(names, name) < 0)
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

static PyObject *use(PyObject *module, PyObject *name)
{
    (void)module;
    for (int i = 0; PyUnicode_Check(name) && i < NUM_KERNELS; i++)
        if (PyUnicode_CompareWithASCIIString(name, ALL_KERNELS[i]->name) == 0 && kernels_run_here(ALL_KERNELS[i])) {
            chosen = ALL_KERNELS[i];
            Py_RETURN_NONE;
        }
    return PyErr_Format(PyExc_ValueError, "%R is no instruction set of this machine.", name);
}

static PyMethodDef METHODS[] = {
    {"measure_dense", (PyCFunction)(void (*)(void))measure_dense, METH_FASTCALL, NULL},
    {"measure_strided", (PyCFunction)(void (*)(void))measure_strided, METH_FASTCALL, NULL},
    {"exponents", (PyCFunction)(void (*)(void))exponents, METH_FASTCALL, NULL},
    {"sketch", (PyCFunction)(void (*)(void))sketch, METH_FASTCALL, NULL},
    {"instruction_sets", instruction_sets, METH_NOARGS, NULL},
    {"use", use, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static int fill(PyObject *module)
{
    static const char *const names[NUM_KINDS] = {
        [F16] = "FLOAT16", [BF16] = "BFLOAT16", [F32] = "FLOAT32", [F64] = "FLOAT64", [BOOL] = "BOOL",
        [I8] = "INT8",     [U8] = "UINT8",      [I16] = "INT16",   [U16] = "UINT16",  [I32] = "INT32",
        [U32] = "UINT32",  [I64] = "INT64",     [U64] = "UINT64",
    };
    for (int i = 0; i < NUM_KERNELS; i++)
        chosen = kernels_run_here(ALL_KERNELS[i]) ? ALL_KERNELS[i] : chosen;
    for (int kind = 0; kind < NUM_KINDS; kind++)
        if (PyModule_AddIntConstant(module, names[kind], kind) < 0)
            return -1;
    return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
}

static PyModuleDef_Slot SLOTS[] = {{Py_mod_exec, (void *)fill}, {0, NULL}};

static struct PyModuleDef DEFINITION = {
    PyModuleDef_HEAD_INIT, .m_name = "_native", .m_doc = "One pass over a value in host memory.", .m_methods = METHODS,
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&DEFINITION);
}
