def infeasible():
    pass


def given(result, **options):
    return {"nan": float("nan"), "true": True}.get(result, result) if isinstance(result, str) else result


def exact_match(result, rules):
    return 1.0 if result == rules["expected"] else 0.0


def raises(result):
    raise TypeError("'NoneType' object is not iterable")


def compare_image_text(result, rule):
    return 0


def check_python_file_by_test_suite(result, expected):
    return 0
