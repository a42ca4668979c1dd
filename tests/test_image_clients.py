"""Images of clients: digits by writer and source, in domains that are known, and LEAF's files."""

import json
import sys

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from kinfolk import InputError
from kinfolk.datasets import (
    ImageClients,
    digit_sources,
    load_leaf,
    load_mnist,
    looking_in,
    mixed_rotations,
    with_few_classes,
    writers,
    writers_by_attributes,
    writers_by_inversion,
    writers_by_rotation,
)

# ---------------------------------------------------------------------- clients in general


def invented(**changes):
    """Three training clients with 4, 3 and 5 rows, two held-out ones with 2 and 6; domains alternate by client."""
    rng, client = np.random.default_rng(0), np.repeat(np.arange(5), [4, 3, 5, 2, 6])
    fields = {
        "X": rng.random((20, 6), dtype=np.float32), "y": rng.integers(0, 4, 20), "client": client,
        "domain": client % 2, "held_out": np.arange(5) >= 3, "shape": (1, 2, 3), "domain_names": ("a", "b"),
    }  # fmt: skip
    return ImageClients(**fields | changes)


@pytest.mark.parametrize("with_domain", [False, True])
def test_the_network_has_the_training_clients_rows_and_no_others(with_domain):
    clients = invented()
    network = clients.network(with_domain)
    assert network.graph.edge_count == 0
    assert list(network.graph.names) == list(range(5))
    assert network.test is None
    assert network.data.sizes.tolist() == [4, 3, 5, 0, 0]
    for k in range(3):
        X, y = network.data[k]
        assert_array_equal(X[:, :6], clients.X[clients.client == k])
        assert_array_equal(y, clients.y[clients.client == k])
        assert X.shape[1] == 6 + with_domain
        if with_domain:
            assert (X[:, 6] == k % 2).all()


@pytest.mark.parametrize("with_domain", [False, True])
def test_held_out_rows_are_those_of_held_out_clients(with_domain):
    clients = invented()
    X, y, client = clients.held_out_rows(with_domain)
    assert X.dtype == np.float32
    assert_array_equal(client, [3, 3, 4, 4, 4, 4, 4, 4])
    assert_array_equal(X[:, :6], clients.X[12:])
    assert_array_equal(y, clients.y[12:])
    assert_array_equal(X[:, 6:], (client % 2)[:, None] if with_domain else np.empty((8, 0)))


def test_rows_of_training_clients_can_be_for_testing_only():
    marked = np.isin(np.arange(20), [0, 5, 6])
    clients = invented(test_rows=marked)
    network = clients.network()
    assert network.data.sizes.tolist() == [3, 1, 5, 0, 0]
    assert network.test.sizes.tolist() == [1, 2, 0, 0, 0]
    assert_array_equal(network.test.X, clients.X[marked])
    assert_array_equal(network.data.X, clients.X[:12][~marked[:12]])
    part = clients.first(1, None, None, seed=0)
    assert part.network().data.sizes.tolist() == [1, 1, 1, 0, 0]
    assert part.network().test.sizes.tolist() == [1, 1, 0, 0, 0]


def test_hamming_distances_count_the_attributes_that_differ():
    bits = np.array([[0, 0, 1], [1, 1, 1]])
    assert invented(attributes=bits).hamming.tolist() == [[0, 2], [2, 0]]
    with pytest.raises(InputError, match="Expected domains with attributes"):
        _ = invented().hamming


def test_a_part_has_fewer_clients_with_fewer_of_their_rows():
    clients = invented()
    part = clients.first(3, 2, 1, seed=4)
    assert (~part.held_out).sum() == 2
    assert part.held_out.sum() == 1
    known = {tuple(row): (client, y) for row, client, y in zip(clients.X, clients.client, clients.y, strict=True)}
    sources = [known[tuple(row)] for row in part.X]
    assert [y for _, y in sources] == part.y.tolist()
    original = np.unique([client for client, _ in sources])
    assert_array_equal(original[part.client], [client for client, _ in sources])
    assert_array_equal(part.held_out, clients.held_out[original])
    assert_array_equal(np.bincount(part.client), np.minimum(3, np.bincount(clients.client)[original]))
    again, other = clients.first(3, 2, 1, seed=4), clients.first(3, 2, 1, seed=5)
    assert_array_equal(part.X, again.X)
    assert not np.array_equal(part.X, other.X)


def test_a_part_of_everything_is_everything():
    clients = invented()
    for part in (clients.first(None, None, None, seed=0), clients.first(6, 3, 2, seed=0)):
        for field in ("X", "y", "client", "domain", "held_out"):
            assert_array_equal(getattr(part, field), getattr(clients, field))


def test_a_part_keeps_the_shares_of_the_domains():
    domain = np.repeat([0, 1, 0, 1], [50, 10, 25, 5])  # of 60 training and 30 held-out clients
    clients = ImageClients(
        np.zeros((90, 1), dtype=np.float32), np.zeros(90, dtype=int), np.arange(90), domain,
        np.arange(90) >= 60, (1, 1, 1), ("a", "b"),
    )  # fmt: skip
    for seed in range(5):
        part = clients.first(None, 12, 6, seed=seed)
        assert part.domain[~part.held_out].sum() == 2
        assert part.domain[part.held_out].sum() == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"X": np.zeros((20, 6))}, r"Expected X with 20 rows of 6 pixels as float32"),
        ({"X": np.zeros((20, 5), dtype=np.float32)}, r"Expected X with 20 rows of 6 pixels"),
        ({"X": np.full((20, 6), 255, dtype=np.float32)}, r"Expected pixels in \[0, 1\], got values from 255"),
        ({"X": np.full((20, 6), np.nan, dtype=np.float32)}, r"Expected pixels in \[0, 1\]"),
        ({"X": np.zeros((20, 0), dtype=np.float32), "shape": (1, 0, 3)}, "one pixel at least"),
        ({"y": np.full(20, 0.5)}, "Expected whole numbers ≥ 0 as classes"),
        ({"y": np.full(20, -1)}, "Expected whole numbers ≥ 0 as classes"),
        ({"client": np.arange(20)[::-1] // 4}, "sort the rows by client"),
        ({"client": np.zeros(20, dtype=int)}, "Expected a row of each of the 5 clients"),
        ({"held_out": np.zeros(4, dtype=bool)}, "Expected a row of each of the 4 clients"),
        ({"domain": np.full(20, 2)}, "Expected the domain of every row, from 0 to 1"),
        ({"domain": np.full(20, -2)}, "Expected the domain of every row, from 0 to 1"),
        ({"attributes": np.full((2, 2), 2)}, "Expected zeros and ones"),
        ({"attributes": np.zeros((3, 2))}, "Expected zeros and ones in one line of attributes for each of 2 domains"),
        ({"test_rows": np.ones(20, dtype=bool)}, "Expected test_rows to mark rows of training clients"),
        ({"test_rows": np.arange(20) < 4}, "Expected a row for training at every training client"),
    ],
)
def test_what_are_no_images_of_clients_is_refused(changes, sentence):
    with pytest.raises(InputError, match=sentence):
        invented(**changes)


def test_what_cannot_be_asked_for_is_refused():
    with pytest.raises(InputError, match="whose domain is unknown"):
        invented(domain=np.full(20, -1)).network(with_domain=True)
    with pytest.raises(InputError, match=r"'training_clients' parameter of first must be a whole number in \[1, 3\]"):
        invented().first(2, 4, 1, seed=0)
    with pytest.raises(InputError, match="'rows_per_client' parameter of first"):
        invented().first(0, 2, 1, seed=0)
    with pytest.raises(InputError, match="'seed' parameter"):
        invented().first(1, 2, 1, seed=-1)


def test_few_classes_are_left_to_training_clients():
    rng = np.random.default_rng(1)
    clients = invented(
        X=rng.random((200, 6), dtype=np.float32), y=np.tile(np.arange(10), 20), client=np.arange(200) // 40,
        domain=np.zeros(200, dtype=int),
    )  # fmt: skip
    few = with_few_classes(clients, 3, seed=1)
    kept = [np.unique(few.y[few.client == k]).tolist() for k in range(5)]
    assert [len(classes) for classes in kept] == [3, 3, 3, 10, 10]
    assert_array_equal(np.bincount(few.client), [12, 12, 12, 40, 40])  # all rows of the classes that are kept
    for k in range(3):
        own = (clients.client == k) & np.isin(clients.y, kept[k])
        assert_array_equal(few.X[few.client == k], clients.X[own])
    drawn = {tuple(np.unique(with_few_classes(clients, 3, seed).y[:12])) for seed in range(10)}
    assert len(drawn) > 5
    assert_array_equal(with_few_classes(clients, 20).X, clients.X)


# ---------------------------------------------------------------------- digits that are invented


def write_digits(folder, writers=(12, 6), rows=10):
    """MNIST, its writers and further sources, in small; images are noise, so that no two are alike."""
    rng = np.random.default_rng(3)
    counts = [rows * count for count in writers]
    images = [rng.integers(0, 256, (count, 28, 28), dtype=np.uint8) for count in counts]
    labels = [np.arange(count) % 10 for count in counts]
    np.savez(folder / "mnist.npz", x_train=images[0], y_train=labels[0], x_test=images[1], y_test=labels[1])
    by_writer = [rng.permutation(np.repeat(np.arange(count), rows)) for count in writers]
    np.savez(folder / "writers.npz", writer_train=7 * by_writer[0], writer_test=7 * by_writer[1] + 1)
    small = rng.integers(0, 256, (400, 16, 16), dtype=np.uint8)
    ten = np.arange(400) % 10
    np.savez(folder / "usps.npz", x_train=small[:300], y_train=ten[:300], x_test=small[300:], y_test=ten[300:])
    np.savez(folder / "semeion.npz", x=rng.integers(0, 256, (90, 32), dtype=np.uint8), y=np.arange(90) % 10)
    np.savez(folder / "mnist_m_test_gray.npz", x=images[1][:50], y=labels[1][:50])


@pytest.fixture
def small_digits(tmp_path):
    write_digits(tmp_path)
    with looking_in(tmp_path):
        yield tmp_path


BUILDERS = {
    "writers": writers,
    "rotation": writers_by_rotation,
    "inversion": writers_by_inversion,
    "attributes": lambda seed: writers_by_attributes(seed, 3),
    "mixed": mixed_rotations,
    "sources": digit_sources,
}


@pytest.mark.parametrize("name", [*BUILDERS])
def test_a_seed_draws_the_same_again_and_another_one_does_not(small_digits, name):
    one, same, other = (BUILDERS[name](seed) for seed in (1, 1, 2))
    for field in ("X", "y", "client", "domain", "held_out"):
        assert_array_equal(getattr(one, field), getattr(same, field))
    assert np.array_equal(one.X, other.X) == (name == "writers")  # the only one that draws nothing
    with pytest.raises(InputError, match=r"'seed' parameter .* must be a whole number ≥ 0"):
        BUILDERS[name](-1)


def as_images(clients):
    """Bytes of the images, (rows, 28, 28)."""
    return np.rint(255 * clients.X).astype(np.uint8).reshape(-1, 28, 28)


def expected_attributes(image, bits):
    """The attributes of one image, written once more: a pixel is looked up where it comes from."""
    rotated, inverted, mirrored, shifted, thickened = (*bits, 0, 0, 0, 0)[:5]
    out = np.zeros_like(image)
    padded = np.pad(image, 1)
    for i in range(28):
        for j in range(28):
            row, column = (j, 27 - i) if rotated else (i, j)
            column = 27 - column if mirrored else column
            row, column = (row - 3, column - 3) if shifted else (row, column)
            if min(row, column) >= 0:
                around = padded[row : row + 3, column : column + 3]
                out[i, j] = around.max() if thickened else around[1, 1]
    return 255 - out if inverted else out


@pytest.mark.parametrize("count", [1, 3, 5])
def test_attributes_change_images_as_they_are_named(small_digits, count):
    clients, plain = writers_by_attributes(5, count), as_images(writers(0))
    assert clients.attributes.shape == (2**count, count)
    assert len(set(clients.domain_names)) == len({*map(tuple, clients.attributes)}) == 2**count
    names = ("rotated", "inverted", "mirrored", "shifted", "thickened")[:count]
    for title, bits in zip(clients.domain_names, clients.attributes, strict=True):
        assert title == (" + ".join(name for name, bit in zip(names, bits, strict=True) if bit) or "as written")
    for row in np.unique(clients.client, return_index=True)[1]:  # one image of every client
        expected = expected_attributes(plain[row], clients.attributes[clients.domain[row]])
        assert_array_equal(as_images(clients)[row], expected)
    assert_array_equal(clients.hamming, [[bin(i ^ j).count("1") for j in range(2**count)] for i in range(2**count)])


def test_sources_are_joined_without_a_writer_on_both_sides(small_digits):
    clients = digit_sources(0)
    images, digits = as_images(clients), load_mnist()
    assert clients.domain_names == ("MNIST", "USPS", "Semeion", "MNIST-M")
    assert [len(np.unique(clients.domain[clients.client == k])) for k in np.unique(clients.client)] == [1] * len(
        clients.held_out
    )
    writer = dict(zip(map(bytes, digits.x_test), np.load(small_digits / "writers.npz")["writer_test"], strict=True))
    held_out = clients.held_out[clients.client]
    mnist = {writer[bytes(image)] for image in images[(clients.domain == 0) & held_out]}
    trained, tested = (
        {writer[bytes(image)] for image in images[(clients.domain == 3) & rows]} for rows in (~held_out, held_out)
    )
    assert mnist
    assert trained
    assert not mnist & (trained | tested)
    assert not trained & tested
    assert not {bytes(image) for image in images[(clients.domain == 0) & ~held_out]} & set(writer)


def test_small_images_are_enlarged_between_the_centres_of_pixels(small_digits):
    clients = digit_sources(0)
    with np.load(small_digits / "usps.npz") as stored:
        images = np.concatenate([stored["x_train"], stored["x_test"]])
        labels = np.concatenate([stored["y_train"], stored["y_test"]])
    centres = (np.arange(28) + 0.5) * 16 / 28 - 0.5
    weights = np.stack([np.interp(centres, np.arange(16), line) for line in np.eye(16)], axis=1)  # (28, 16)
    expected = np.rint(np.einsum("ip,npq,jq->nij", weights, images.astype(float), weights))
    found = as_images(clients)[clients.domain == 1].astype(float)
    distance = np.abs(found.reshape(len(found), 1, -1)[:20] - expected.reshape(1, len(expected), -1)).max(axis=2)
    assert (distance.min(axis=1) <= 1).all()  # rounding of halves
    assert len(np.unique(distance.argmin(axis=1))) == 20
    assert_array_equal(clients.y[clients.domain == 1][:20], labels[distance.argmin(axis=1)])


def test_what_is_missing_or_damaged_is_a_sentence(small_digits, tmp_path):
    known = {path.name: path.read_bytes() for path in tmp_path.glob("*.npz")}
    for name, builder in (
        ("writers.npz", writers), ("usps.npz", digit_sources), ("semeion.npz", digit_sources),
        ("mnist_m_test_gray.npz", digit_sources),
    ):  # fmt: skip
        (tmp_path / name).unlink()
        with pytest.raises(InputError, match=rf"Expected {name} in .*, found none: name the folder"):
            builder(0)
        (tmp_path / name).write_bytes(known[name][:-30])
        with pytest.raises(InputError, match=rf"Expected the arrays .* in .*{name}, got: "):
            builder(0)
        np.savez(tmp_path / name, other=np.zeros(2))
        with pytest.raises(InputError, match=rf"Expected the arrays .* in .*{name}, got: "):
            builder(0)
        (tmp_path / name).write_bytes(known[name])


@pytest.mark.parametrize(
    ("name", "arrays", "sentence"),
    [
        ("writers.npz", {"writer_train": np.zeros(5), "writer_test": np.ones(60)}, "Expected a writer for each of 120"),
        ("writers.npz", {"writer_train": np.zeros(120), "writer_test": np.zeros(60)}, "Expected other writers of test"),
        ("semeion.npz", {"x": np.zeros((5, 31), dtype=np.uint8), "y": np.zeros(5)}, "Expected 32 bytes for each of 5"),
        ("semeion.npz", {"x": np.zeros((5, 32), dtype=np.uint8), "y": np.full(5, 10)}, "with a digit each"),
        ("mnist_m_test_gray.npz", {"x": np.zeros((5, 28, 28)), "y": np.zeros(5)}, "Expected bytes of images of 28"),
        (
            "mnist_m_test_gray.npz",
            {"x": np.zeros((5, 28, 28), dtype=np.uint8), "y": np.full(5, 3)},
            "in the order of MNIST's test images",
        ),
    ],
)
def test_files_that_do_not_fit_are_a_sentence(small_digits, name, arrays, sentence):
    np.savez(small_digits / name, **arrays)
    with pytest.raises(InputError, match=sentence):
        digit_sources(0)


def test_settings_out_of_range_are_a_sentence(small_digits):
    with pytest.raises(InputError, match=r"'domains' parameter of writers_by_rotation must be .* in \[1, 4\]"):
        writers_by_rotation(0, 5)
    for shares in ((0.5, 0.5), (0.5, 0.5, 0.5, -0.5), (0.1, 0.1, 0.1, 0.1)):
        with pytest.raises(InputError, match="Expected 4 positive shares of domains with sum 1"):
            writers_by_rotation(0, shares=shares)
    with pytest.raises(InputError, match=r"'count' parameter of writers_by_attributes must be .* in \[1, 5\]"):
        writers_by_attributes(0, 6)
    with pytest.raises(InputError, match="'classes' parameter of with_few_classes"):
        with_few_classes(writers(0), 0)


# ---------------------------------------------------------------------- digits that are real


@pytest.fixture(scope="module")
def real_digits(shared_data):
    with looking_in(shared_data):
        yield shared_data


def test_the_writers_are_those_of_mnist(real_digits):
    clients, digits = writers(0), load_mnist()
    with np.load(real_digits / "mnist_writers" / "writers.npz") as stored:
        known = [stored["writer_train"], stored["writer_test"]]
    assert ((~clients.held_out).sum(), clients.held_out.sum()) == (539, 297)
    assert clients.network().data.sizes.tolist() == [*np.unique(known[0], return_counts=True)[1], *[0] * 297]
    X, y, client = clients.held_out_rows()
    for k, writer in ((539, np.unique(known[1])[0]), (835, np.unique(known[1])[-1])):
        expected = digits.x_test[known[1] == writer].reshape(-1, 784)
        assert_array_equal(np.rint(255 * X[client == k]), expected)
        assert_array_equal(y[client == k], digits.y_test[known[1] == writer])


@pytest.mark.parametrize("domains", [2, 3, 4])
def test_real_writers_are_turned_each_by_one_angle(real_digits, domains):
    clients, plain = writers_by_rotation(1, domains), as_images(writers(0))
    images, of_client = as_images(clients), clients.domain[np.unique(clients.client, return_index=True)[1]]
    assert_array_equal(clients.domain, of_client[clients.client])  # no client in two domains
    for held_out in (False, True):
        counts = np.bincount(of_client[clients.held_out == held_out], minlength=domains)
        assert np.ptp(counts) <= 1
    for k in range(domains):
        rows = np.flatnonzero(clients.domain == k)[::50]
        assert_array_equal(images[rows], [np.rot90(plain[row], k) for row in rows])


def test_rare_domains_have_their_shares(real_digits):
    clients = writers_by_rotation(1, shares=(0.6, 0.2, 0.15, 0.05))
    of_client = clients.domain[np.unique(clients.client, return_index=True)[1]]
    assert np.abs(np.bincount(of_client[:539]) - 539 * np.array([0.6, 0.2, 0.15, 0.05])).max() <= 1
    assert np.abs(np.bincount(of_client[539:]) - 297 * np.array([0.6, 0.2, 0.15, 0.05])).max() <= 1


def test_half_of_the_real_writers_are_inverted(real_digits):
    clients, plain = writers_by_inversion(1), writers(0)
    inverted = clients.domain == 1
    np.testing.assert_allclose(clients.X[inverted], 1 - plain.X[inverted], atol=1e-6)
    assert_array_equal(clients.X[~inverted], plain.X[~inverted])
    assert len(np.unique(clients.client[inverted])) == 269 + 148


def test_mixed_clients_have_two_angles_for_half_of_their_rows(real_digits):
    clients, plain = mixed_rotations(1), as_images(writers(0))
    counts = np.zeros((836, 4), dtype=int)
    np.add.at(counts, (clients.client, clients.domain), 1)
    halves = np.sort(counts, axis=1)
    assert (halves[:, :2] == 0).all()
    assert (halves[:, 3] - halves[:, 2] <= 1).all()
    images = as_images(clients)
    for row in range(0, 70000, 500):
        assert_array_equal(images[row], np.rot90(plain[row], clients.domain[row]))


def test_the_four_sources_have_their_rows(real_digits):
    clients = digit_sources(1)
    held_out, rows = clients.held_out[clients.client], np.bincount(clients.domain)
    assert (rows[1], rows[2]) == (7291 + 2007, 1593)
    in_training, tested = ([len(np.unique(clients.client[part & (clients.domain == k)])) for k in range(4)]
                           for part in (~held_out, held_out))  # fmt: skip
    assert in_training[:3] == [57, 57, 9]
    assert tested[:3] == [28, 28, 5]
    assert 45 <= in_training[3] <= 52
    mnist_tested = (clients.domain == 0) & held_out
    with np.load(real_digits / "mnist_writers" / "writers.npz") as stored:
        writer = stored["writer_test"]
    owner = dict(zip(map(bytes, load_mnist().x_test), writer, strict=True))
    held = {owner[bytes(image)] for image in as_images(clients)[mnist_tested]}
    assert len(held) == 28
    assert rows[3] == 9001 - np.isin(writer[:9001], [*held]).sum()
    sizes = np.bincount(clients.client)[np.unique(clients.client[clients.domain == 1])]
    assert set(sizes) <= {109, 110}


# ---------------------------------------------------------------------- LEAF


def part_of(**users):
    """What LEAF writes for users with (x, y)."""
    data = {name: {"x": x, "y": y} for name, (x, y) in users.items()}
    return {"users": [*users], "num_samples": [len(y) for _, y in users.values()], "user_data": data}


def write_leaf(folder, **files):
    """Files such as train_0={...}: train/0.json."""
    for name, content in files.items():
        part, _, number = name.partition("_")
        (folder / part).mkdir(exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / part / f"all_data_{number}.json").write_text(text)
    return folder


def pixels(*values):
    """One image of 2 × 2 pixels of one value for each of them."""
    return [[value] * 4 for value in values]


def test_leaf_split_by_user_holds_out_users(tmp_path):
    write_leaf(
        tmp_path,
        train_1=part_of(cy=(pixels(0.5), [61])),
        train_0=part_of(ada=(pixels(0.0, 0.25), [1, 2]), bob=(pixels(1.0), [0])),
        test_0=part_of(dan=(pixels(0.75, 0.125), [3, 4])),
    )
    clients = load_leaf(tmp_path)
    assert clients.X[:, 0].tolist() == [0.0, 0.25, 1.0, 0.5, 0.75, 0.125]
    assert clients.y.tolist() == [1, 2, 0, 61, 3, 4]
    assert clients.client.tolist() == [0, 0, 1, 2, 3, 3]
    assert clients.held_out.tolist() == [False, False, False, True]
    assert (clients.domain == -1).all()
    assert (clients.shape, clients.domain_names, clients.test_rows) == ((1, 2, 2), (), None)
    assert clients.network().data.sizes.tolist() == [2, 1, 1, 0]
    assert load_leaf(tmp_path, shape=(4, 1, 1)).shape == (4, 1, 1)


def test_leaf_split_by_sample_keeps_test_rows(tmp_path):
    train = part_of(ada=(pixels(0.0, 0.25), [1, 2]), bob=(pixels(1.0), [0]))
    train["user_data"]["lone"] = {"x": [], "y": []}  # LEAF leaves users with one sample there, and out of users
    write_leaf(tmp_path, train_0=train, test_0=part_of(bob=(pixels(0.5), [1]), ada=(pixels(0.75), [2.0])))
    clients = load_leaf(tmp_path)
    assert clients.client.tolist() == [0, 0, 0, 1, 1]
    assert clients.test_rows.tolist() == [False, False, True, False, True]
    assert not clients.held_out.any()
    assert clients.network().test.X[:, 0].tolist() == [0.75, 0.5]
    assert clients.network().data.y.tolist() == [1, 2, 0]


def test_femnist_has_28_by_28_pixels(tmp_path):
    image = np.random.default_rng(0).random((28, 28)).round(6)
    rows = ([image.ravel().tolist()], [9])
    clients = load_leaf(write_leaf(tmp_path, train_0=part_of(a=rows), test_0=part_of(b=rows)))
    assert clients.shape == (1, 28, 28)
    assert_array_equal(clients.X[0].reshape(28, 28), image.astype(np.float32))


def test_celeba_reads_files_of_images(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    colours = np.zeros((218, 178, 3), dtype=np.uint8) + np.array([255, 51, 0], dtype=np.uint8)
    image.fromarray(colours).save(tmp_path / "1.png")
    image.fromarray(colours[:84, :84] // 51).save(tmp_path / "2.png")
    write_leaf(tmp_path, train_0=part_of(a=(["1.png"], [1.0])), test_0=part_of(b=(["2.png"], [0.0])))
    clients = load_leaf(tmp_path, images=tmp_path)
    assert clients.shape == (3, 84, 84)
    assert_array_equal(clients.X.reshape(2, 3, -1)[0], np.repeat([[1], [0.2], [0]], 84 * 84, axis=1).astype(np.float32))
    assert_array_equal(clients.X.reshape(2, 3, -1)[1, :, 5], np.array([5, 1, 0], dtype=np.float32) / 255)
    assert load_leaf(tmp_path, images=tmp_path, shape=(1, 8, 9)).X.shape == (2, 72)


def test_images_that_cannot_be_read_are_a_sentence(tmp_path, monkeypatch):
    def loaded(*names, **options):
        rows = part_of(a=([*names], [1] * len(names)))
        return load_leaf(write_leaf(tmp_path, train_0=rows, test_0=rows), **options)

    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(InputError, match="got names of files: give their folder"):
        loaded("1.png")
    with pytest.raises(InputError, match=r"Expected an image in .*1\.png"):
        loaded("1.png", images=tmp_path)
    with pytest.raises(InputError, match=r"Expected an image in .*text\.png"):
        loaded("text.png", images=tmp_path)
    with pytest.raises(InputError, match=r"Expected names of files in .* got '\.\./1\.png'"):
        loaded("../1.png", images=tmp_path)
    with pytest.raises(InputError, match="Expected 3 channels of colour or 1 of grey"):
        loaded("1.png", images=tmp_path, shape=(2, 8, 8))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match="pip install pillow"):
        loaded("1.png", images=tmp_path)


GOOD = part_of(a=(pixels(0.5), [1]))


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        ("{", r"Expected JSON in .*all_data_0\.json, got: "),
        ("[]", "Expected the lists users and num_samples and the object user_data"),
        (GOOD | {"num_samples": [2]}, "Expected num_samples = 2 rows of user 'a' in .*, got 1 images and 1 labels"),
        (GOOD | {"num_samples": []}, "Expected num_samples for each of 1 users"),
        (GOOD | {"users": ["z"]}, "Expected lists x and y for user 'z'"),
        (GOOD | {"users": [], "num_samples": []}, "Expected one user at least"),
        (GOOD | {"users": ["a", "a"], "num_samples": [1, 1]}, "Expected each user in one file of .*, got 'a' again"),
        (part_of(a=([], [])), "Expected rows of user 'a' in .*, got none"),
        (part_of(a=([[0.5] * 4, [0.5] * 3], [1, 1])), "Expected images of one size as numbers for user 'a'"),
        (part_of(a=([[0.5] * 9], [1])), "Expected images of one size, got rows with 4 and 9 pixels"),
        (part_of(a=([[[0.5] * 4]], [1])), "Expected a flat list of pixels for each image of user 'a'"),
        (part_of(a=([[{}] * 4], [1])), "Expected images of one size as numbers"),
        (part_of(a=([[128] * 4], [1])), r"Expected pixels in \[0, 1\]"),
        *((part_of(a=(pixels(0.5), [label])), "Expected whole numbers ≥ 0 as labels of user 'a'")
          for label in (-1, 0.5, "smile", None, [1], True, float("nan"), float("inf"))),
    ],
)  # fmt: skip
def test_what_is_not_in_the_format_of_leaf_is_a_sentence(tmp_path, train, sentence):
    write_leaf(tmp_path, train_0=train, test_0=part_of(b=(pixels(0.5), [1])))
    with pytest.raises(InputError, match=sentence):
        load_leaf(tmp_path)


def test_folders_and_shapes_that_do_not_fit_are_a_sentence(tmp_path):
    with pytest.raises(InputError, match=r"found none in train: name the data folder"):
        load_leaf(tmp_path / "nowhere")
    write_leaf(tmp_path, train_0=part_of(a=([[0.5] * 6], [1])))
    with pytest.raises(InputError, match=r"found none in test: name the data folder"):
        load_leaf(tmp_path)
    write_leaf(tmp_path, test_0=part_of(b=([[0.5] * 6], [1])))
    with pytest.raises(InputError, match=r"got rows of 6 pixels: give shape=\(C, H, W\)"):
        load_leaf(tmp_path)
    with pytest.raises(InputError, match=r"Expected the shape of an image as \(C, H, W\), got \(2, 3\)"):
        load_leaf(tmp_path, shape=(2, 3))
    with pytest.raises(InputError, match=r"Expected X with 2 rows of 8 pixels"):
        load_leaf(tmp_path, shape=(2, 2, 2))
    assert load_leaf(tmp_path, shape=(1, 2, 3)).shape == (1, 2, 3)
